"""What a checkpoint consists of, as bytes and as values.

It may read and write streams that it is given, and opens no file by itself; nothing that comes from
outside is unpickled or trusted. Begin with ``manifest.py``.
"""
