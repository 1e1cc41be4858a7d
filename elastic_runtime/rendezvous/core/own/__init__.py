"""What a node decides about itself: pure.

It keeps its own key up to date, finds out which nodes it reaches, and notifies its agent. Begin
with ``own_node.py``.
"""
