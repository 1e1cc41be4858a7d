"""The process on each node that starts workers, watches them and takes part in the rendezvous.

``lifecycle`` decides; ``performer.py`` carries it out with ``workers``, ``logs`` and ``metrics``.
Begin with the loop in ``agent.py``, and with what it asks, ``lifecycle/lifecycle_step.py``.
"""
