"""The process on each node that starts workers, watches them and takes part in the rendezvous.

``lifecycle`` decides, ``agent.py`` performs; ``workers``, ``logs`` and ``metrics`` are its hands.
Begin with ``agent.py`` and the function that it performs, ``lifecycle/lifecycle_step.py``.
"""
