"""What a node decides about the rendezvous: pure, without a clock, a thread or a socket.

It may use the records of ``protocol``, the ``policy`` and the types of ``store_contract.py``, and
does no I/O. Begin with ``membership.py``: one event goes in, and the new state, the actions and the
notices come out.
"""
