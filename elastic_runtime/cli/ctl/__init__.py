"""``elasticctl`` on a store and on directories of checkpoints.

It reads, and changes only what it was asked to change. Begin with ``elasticctl.py``.
"""
