"""What an agent decides: pure, without processes, sockets or a clock.

It may touch the records and messages of ``protocol``, and the events and notices of the rendezvous.
Begin with ``lifecycle_step.py``; ``lifecycle_types.py`` has its events and actions.
"""
