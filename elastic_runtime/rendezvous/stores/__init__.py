"""Where the records of a run are kept: an etcd, a store that the job hosts itself, or memory.

Stores do I/O and decide nothing about a job; all of them keep the contract of
``../store_contract.py``. Begin with ``memory_store.py``, its plainest implementation.
"""
