"""Starting, signalling, talking to and watching the workers of one node.

It performs what the lifecycle has decided and says what happened to each worker; it decides
nothing about rounds. Begin with ``worker_group.py``.
"""
