"""The store on a torch TCPStore, for machines without an etcd.

It may touch torch's TCPStore and nothing else of torch. Begin with ``c10d_adapter.py``.
"""
