"""The store that a job hosts itself, where there is no etcd: ``c10d://host:port``.

``server`` puts the store of ``memory`` behind a socket, ``adapter`` is a node's end of it, ``wire``
says what goes over it, and ``succession`` decides who hosts it. It knows no torch and unpickles
nothing. Begin with ``wire``, whose docstring is the protocol.
"""
