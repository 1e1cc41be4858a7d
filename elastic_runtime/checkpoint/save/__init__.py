"""Saving: when, what each rank writes, and how all ranks come to one commit.

``save_scheduler.py`` runs one save after the other, ``save_run.py`` is one of them from top to
bottom. Begin with these two.
"""
