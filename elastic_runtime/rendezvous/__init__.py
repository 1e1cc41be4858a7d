"""How nodes agree on the next round.

``core`` decides and is pure, ``stores`` and ``probe.py`` may use the network, and
``participant.py`` is the one place that joins them. Begin with ``participant.py``.
"""
