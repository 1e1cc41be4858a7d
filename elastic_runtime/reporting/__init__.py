"""How events become something that a person or a machine reads.

It may write to the terminal and to nothing else; what happened is decided elsewhere and comes in
as an event. Begin with ``log.py``.
"""
