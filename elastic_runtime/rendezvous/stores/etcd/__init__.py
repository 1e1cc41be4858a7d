"""The store on etcd v3.

The only folder that speaks gRPC. Begin with ``etcd_adapter.py``; ``etcd_keys.py`` says how records
lie in etcd.
"""
