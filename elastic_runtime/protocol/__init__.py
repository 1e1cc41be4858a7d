"""What processes of a job say to each other, and what they keep in the store.

Pure data with a version in each message: nothing here opens a connection, imports torch or
decides. Begin with ``records.py`` and ``round_records.py`` for the store and ``messages.py`` for
workers and their agent.
"""
