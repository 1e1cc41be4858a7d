"""The side of a job that runs the user's script.

It may touch torch and its agent's socket (``context.py`` only), and never the store. Begin with
``run.py`` (``elastic.run``) and ``run_loop.py``.
"""
