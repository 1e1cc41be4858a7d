"""The operator of ElasticJobs: observes, decides, performs, writes the status.

``decide`` is pure; this room does the I/O and knows nothing of what runs in the pods. Begin with
``reconcile.py``.
"""
