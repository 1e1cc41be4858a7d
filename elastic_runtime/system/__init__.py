"""What this process asks of the operating system and of torch's undocumented parts.

It may touch sockets, threads, ``/proc`` and torch, and knows nothing of jobs. Begin with
``threads.py``, through which every thread of the package is started.
"""
