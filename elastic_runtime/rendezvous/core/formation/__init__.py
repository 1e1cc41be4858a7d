"""How the leader forms the next round: its members, its time, what a broken round costs.

It is pure, and may use the state and decisions of ``core``, but not what a node decides about
itself (``own``). Begin with ``round_formation.py``.
"""
