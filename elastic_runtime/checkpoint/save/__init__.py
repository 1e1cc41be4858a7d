"""Saving: when, what each rank writes, and how all ranks come to one commit.

It may call on storages, formats and entries; nothing there knows of it. Begin with the walk "from
``ckpt.step()`` to a committed checkpoint" in docs/architecture.md, or with ``save_scheduler.py``.
"""
