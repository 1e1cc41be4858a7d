"""``elasticctl`` on a store and on directories of checkpoints.

It reads, and changes only what it was told to change. Begin with ``elasticctl.py``.
"""
