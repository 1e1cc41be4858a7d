"""What a checkpoint consists of, as bytes and as values: mostly pure.

It opens no file by itself; what it reads from outside is never unpickled and never believed. Begin
with ``manifest.py``.
"""
