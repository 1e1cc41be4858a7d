"""The operator of ElasticJobs: observes, decides, performs, writes the status.

``decide`` is pure; the modules beside it do the I/O, and know nothing of what runs in the
pods. Begin with ``reconcile.py``.
"""
