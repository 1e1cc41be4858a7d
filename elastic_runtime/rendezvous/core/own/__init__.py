"""What a node decides about itself: pure.

It keeps its own key true, finds out whom it reaches, and tells its agent what concerns it. Begin
with ``own_node.py``.
"""
