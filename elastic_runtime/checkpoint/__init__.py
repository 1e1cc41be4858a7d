"""Checkpoints: saved so that they are whole or not there, and loaded by any number of ranks.

It may touch torch, files and object stores; it knows the worker's context and no agent. Begin with
``checkpointer.py``, which ``elastic.run`` calls.
"""
