"""``elastic-run``: from a command line to a running agent.

It starts processes and the store of a job on one machine. Begin with ``elastic_run.py``.
"""
