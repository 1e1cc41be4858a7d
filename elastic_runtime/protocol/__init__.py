"""The messages between processes of a job, and the records that they keep in the store.

Pure data with a version in each message: nothing here opens a connection, imports torch or
decides. Begin with ``records.py`` and ``round_records.py`` for the store and ``messages.py`` for
workers and their agent.
"""
