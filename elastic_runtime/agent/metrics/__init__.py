"""What the events of an agent say about its job, who is told, and how that is asked for.

It changes nothing but what people hear. Begin with ``metrics_fold.py``, which is pure, and with
``job_reporter.py``, by which each event leaves.
"""
