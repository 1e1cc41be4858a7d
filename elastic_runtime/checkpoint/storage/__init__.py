"""Where checkpoints are kept: directories, object stores, and the rules common to all.

It may touch files and the network, imports no torch and knows nothing of what is in a file. Begin
with ``storage_contract.py``.
"""
