"""Loading: which saved state is taken, and how each rank gets its part of it, verified.

It may read storages and the memory of agents, and writes nothing but the user's tensors. Begin with
``load_run.py``.
"""
