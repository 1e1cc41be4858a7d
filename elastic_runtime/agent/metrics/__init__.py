"""Measures a job by the events of its agent, reports the events, and serves the figures. It changes
nothing but what people see. Begin with ``metrics_fold.py``, which is pure, and with
``job_reporter.py``, by which each event leaves.
"""
