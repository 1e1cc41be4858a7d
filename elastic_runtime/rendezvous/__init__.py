"""How nodes agree on the next round.

``core`` decides and is pure, ``stores`` keep what is decided, and ``participant.py`` is the one
place that joins the two. Begin with ``participant.py``.
"""
