"""How the leader forms the next round: pure.

It decides who is in the round, when it is sealed, what a broken one costs, and which nodes can
reach each other.
Begin with ``round_formation.py``.
"""
