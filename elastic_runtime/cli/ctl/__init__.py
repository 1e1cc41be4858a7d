"""``elasticctl`` on a store and on directories of checkpoints.

It may read stores and storages, and changes only what the command says. Begin with
``elasticctl.py``.
"""
