"""What the events of an agent say about its job, and how that is asked for.

It reads events and changes nothing. Begin with ``metrics_fold.py``, which is pure.
"""
