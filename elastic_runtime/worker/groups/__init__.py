"""The process groups of a round: connected, interrupted from another thread, left.

There are two ways from one round's members to the next one's: the same groups get other peers
(``reconfigure.py``), or new groups are built (``rebuild.py``). Begin with ``regrouping.py``, which
is all that the rest of the worker knows of them, then ``round_ranks.py``.
"""
