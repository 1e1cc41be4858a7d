"""What a rank must not lose: the parts of a ``State`` and what a commit remembers of them.

It may touch the user's tensors, and no other rank. Begin with ``state_parts.py``; the
``State`` itself is in ``training/state.py``.
"""
