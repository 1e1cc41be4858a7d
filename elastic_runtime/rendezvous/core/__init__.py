"""What a node decides about the rendezvous: pure, without a clock, a thread or a socket.

It may touch the records of ``protocol`` and nothing else. Begin with ``membership.py``: one event
goes in, and the new state, the actions and the notices come out.
"""
