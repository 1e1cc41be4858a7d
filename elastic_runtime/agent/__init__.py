"""The process on each node that starts workers, watches them and takes part in the rendezvous.

``lifecycle`` decides, ``performer.py`` performs; ``workers``, ``logs`` and ``metrics`` are its
hands. Begin with the loop in ``agent.py``, and what it asks, ``lifecycle/lifecycle_step.py``.
"""
