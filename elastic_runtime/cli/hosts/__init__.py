"""``--hosts`` and ``--discover``: one agent on each of some machines, started over ssh.

``listed_hosts`` reads which machines there are, ``host_plan`` decides what follows (pure), and
``run_on_hosts`` performs it: it starts ``remote_node`` on each machine with OpenSSH's own client
(``ssh_node``), shows its output, and ends it.
"""
