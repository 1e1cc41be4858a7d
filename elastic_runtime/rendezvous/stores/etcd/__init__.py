"""The store on etcd v3.

The only folder of the rendezvous that uses gRPC. Begin with ``etcd_adapter.py``; ``etcd_keys.py``
says which key of etcd has which record.
"""
