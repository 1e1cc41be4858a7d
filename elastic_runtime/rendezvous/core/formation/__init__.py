"""How the leader forms the next round: pure.

It says who is in the round, when it is sealed, what a broken one costs, and who reaches whom.
Begin with ``round_formation.py``.
"""
