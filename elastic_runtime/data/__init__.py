"""Which samples come next, in an order that does not depend on the number of ranks.

It may touch torch's data loading and the worker's context. Begin with ``sampler.py``.
"""
