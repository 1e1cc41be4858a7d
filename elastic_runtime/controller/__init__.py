"""The operator of ElasticJobs: observes, decides, performs, writes the status.

``decide`` is pure; the modules beside it may ask the API server and the agents in pods, and import
nothing of what runs in the pods. Begin with ``reconcile.py``.
"""
