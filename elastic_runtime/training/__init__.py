"""What a user writes a loop with: the ``State``, ``elastic.run``, and what they do with it.

It joins checkpoints, loaders and the ranks of a job; nothing of these knows it. Begin with
``state.py``, then ``run.py``.
"""
