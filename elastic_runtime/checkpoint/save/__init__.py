"""Saving: when, what each rank writes, and how all ranks come to one commit.

It may use storages, formats and entries, and starts threads for saves in the background. Begin with
the walk "from ``ckpt.step()`` to a committed checkpoint" in docs/architecture.md, or with
``save_scheduler.py``.
"""
