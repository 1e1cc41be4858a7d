"""Read by Python as it starts: a fork server can start nothing while a file is there.

``ELASTIC_TEST_NO_ROOM`` names the file.
"""

import errno
import os
import subprocess
import sys


def _refuse() -> None:
    if os.path.exists(os.environ["ELASTIC_TEST_NO_ROOM"]):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _install() -> None:
    fork, execute = os.fork, subprocess.Popen.__init__

    def crowded_fork():
        _refuse()
        return fork()

    def crowded_execute(*args, **settings):
        _refuse()
        execute(*args, **settings)

    os.fork, subprocess.Popen.__init__ = crowded_fork, crowded_execute


if "ELASTIC_TEST_NO_ROOM" in os.environ and any("fork_server" in word for word in sys.orig_argv):
    _install()
