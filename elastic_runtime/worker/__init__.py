"""The side of a job that runs the user's script.

It may touch torch and its agent's socket (``context.py`` only), and never the store. What a script
calls is in ``training/``; begin here with ``context.py`` and ``agreement.py``.
"""
