"""A process that hosts an embedded store, as a test may want to stop or kill it."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests import processes

_PROGRAM = """
import sys
from elastic_runtime.system.listening import listen
from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
hosted = StoreServer(listen("127.0.0.1", int(sys.argv[1])))
print(hosted.port, flush=True)
sys.stdin.read()
"""


class HostProcess:
    """A store in a process of its own, which ends with this one, or with a ``with`` statement."""

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-c", _PROGRAM, str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes
            self.kill()

    def pause(self) -> None:
        """SIGSTOP; returns when it has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        processes.wait_for(lambda: processes.state(self.pid) == "T", 5.0, "the host has stopped")

    def unpause(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; idempotent."""
        self._process.kill()
        self._process.wait()
