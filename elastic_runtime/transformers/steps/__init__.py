"""A step of a ``Trainer``: its samples, what their losses count, and its first and last callback.

Begin with ``train_batches.py``.
"""
