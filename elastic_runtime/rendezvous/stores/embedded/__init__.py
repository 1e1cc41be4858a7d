"""The store that a job hosts itself, where there is no etcd: ``c10d://host:port``.

It may use sockets and threads, imports no torch and unpickles nothing. Begin with the docstring of
``wire_protocol.py``; then ``store_server.py`` is the store of ``memory_store.py`` behind a socket,
``embedded_adapter.py`` a node's end of it, and ``host_succession.py`` decides who hosts it.
"""
