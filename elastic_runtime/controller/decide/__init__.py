"""What is to be done about one ElasticJob: actions, conditions and events.

It is pure: it sees views of cluster objects, does no I/O, and imports nothing else of the
controller. Begin with ``decision.py``.
"""
