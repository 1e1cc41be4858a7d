"""Our rendezvous for plain torchrun, as a handler of torch's registry.

It may use a participant and torch's rendezvous API, which no other folder here imports. Begin with
``handler_entry_points.py``, which torch loads by name.
"""
