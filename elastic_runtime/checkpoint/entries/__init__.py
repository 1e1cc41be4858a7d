"""From what the user registers to a flat dictionary of tensors and values, and back.

It may touch the user's objects, and neither files nor the network. Begin with ``flat_state.py``.
"""
