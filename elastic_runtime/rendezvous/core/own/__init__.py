"""What a node decides about itself: its own key, which nodes it reaches, what its agent is told.

It is pure, and may use the state and decisions of ``core`` and of ``formation``. Begin with
``own_node.py``.
"""
