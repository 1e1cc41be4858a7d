"""The store on etcd v3.

It may use the network and threads, and is the only folder that uses gRPC. Begin with
``etcd_adapter.py``; ``etcd_keys.py`` says which key of etcd has which record.
"""
