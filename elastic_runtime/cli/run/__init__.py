"""``elastic-run``: from a command line to a running agent.

It may start processes and host the store of a job on one machine; how a job runs is the agent's.
Begin with ``elastic_run.py``.
"""
