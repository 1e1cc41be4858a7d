"""The store that a job hosts itself, where there is no etcd: ``c10d://host:port``.

``store_server`` puts the store of ``memory_store`` behind a socket, ``embedded_adapter`` is a
node's end of it, ``wire_protocol`` is the messages, and ``host_succession`` decides who hosts it.
It imports no torch and unpickles nothing. Begin with the docstring of ``wire_protocol``.
"""
