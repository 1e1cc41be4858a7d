"""A process that hosts an embedded store, as a test may want to stop or kill it."""

from __future__ import annotations

import contextlib
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
    """A store in a process of its own, which ends with this one."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def pause(self) -> None:
        """SIGSTOP; returns when it has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        processes.wait_for(
            lambda: processes.state(self._process.pid) == "T", 5.0, "the host has stopped"
        )

    def unpause(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
