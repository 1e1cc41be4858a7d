"""Checkpoints in the memory of agents, which outlive workers, with a copy on another node.

It may touch this node's memory directory and ask other nodes' agents. Begin with
``snapshot_scheduler.py``.
"""
