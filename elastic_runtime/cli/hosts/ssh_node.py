"""The near end of a node on another machine: OpenSSH's client, and what comes through it."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.hosts import remote_node
from elastic_runtime.cli.hosts.host_plan import SSH_FAILED, NodeBegan, NodeEnded
from elastic_runtime.reporting.console import as_events
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_runtime.cli.hosts.listed_hosts import Host
    from elastic_runtime.reporting.console import Console

# After what a user's own command says, as ssh takes the first value of an option: nobody is there
# to type a password, and a machine that has vanished is noticed after 15 s.
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_CHUNK = 1 << 16
_LAST_WORD = 5.0  # seconds
_LOOK = 0.05  # seconds


def ssh_command(ssh: Sequence[str], host: str, python: str) -> list[str]:
    """What starts the far end: pure.

    Args:
        ssh: the client with options of the user's.
        host: the machine, as ssh takes it.
        python: the interpreter there.
    """
    far = shlex.join(["exec", python, "-m", remote_node.__name__])
    return [*ssh, *_OPTIONS, host, far]


class SshNode:
    """A node on another machine.

    Args:
        host: the machine.
        ssh: the client with options of the user's.
        order: what the far end is told, see ``remote_node``.
        prefix: before each line that it prints.
        consoles: where that is shown, by name.
        notify: called when it has begun and when it has ended, from threads of its own.

    Raises:
        OSError: ssh cannot be started.
    """

    def __init__(
        self,
        host: Host,
        ssh: Sequence[str],
        order: Mapping[str, Any],
        prefix: bytes,
        consoles: Mapping[str, Console],
        notify: Callable[[NodeBegan | NodeEnded], None],
    ) -> None:
        self._name = host.name
        self._prefix = prefix
        self._notify = notify
        self._began = time.monotonic()
        self._started_there = False
        self._over = threading.Event()
        self._saying = threading.Lock()
        self._process = subprocess.Popen(
            ssh_command(ssh, host.name, sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches nodes once, through here
        )
        # A thread: a connection takes its time, and a pipe holds less than an environment may have.
        threads.spawn(self._say, json.dumps(order).encode() + b"\n", name="ssh-order")
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        self._readers = [
            threads.spawn(self._show_out, out.fileno(), consoles["stdout"], name="ssh-stdout"),
            threads.spawn(self._show_err, err.fileno(), consoles["stderr"], name="ssh-stderr"),
        ]
        threads.spawn(self._wait, name="ssh-end")

    def leave(self) -> None:
        """Asks the node to leave; a second time hurries it."""
        threads.spawn(self._say, remote_node.LEAVE, name="ssh-leave")

    def say_here(self) -> None:
        """Says that we are here, unless nothing goes through: then the far end is to notice."""
        put = self._process.stdin
        assert put is not None
        if not self._saying.acquire(blocking=False):
            return
        try:
            with suppress(OSError, ValueError):
                looking = select.poll()
                looking.register(put.fileno(), select.POLLOUT)
                if looking.poll(0):
                    os.write(put.fileno(), remote_node.HERE)
        finally:
            self._saying.release()

    def kill(self) -> None:
        """Ends the node at once, and the connection a little later if it does not follow."""
        threads.spawn(self._end, name="ssh-kill")

    def _end(self) -> None:
        self._say(remote_node.KILL)
        if not self._over.wait(_LAST_WORD):
            self.cut()

    def cut(self) -> None:
        """Ends the connection: the far end then has its node leave by itself."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def _say(self, words: bytes) -> None:
        put = self._process.stdin
        assert put is not None
        with self._saying, suppress(OSError, ValueError):  # it is gone, which is noticed elsewhere
            view = memoryview(words)
            while view:
                view = view[os.write(put.fileno(), view) :]

    def _wait_for_space(self, console: Console) -> None:
        """Has the node wait while people read more slowly than it prints."""
        while console.full and not self._over.wait(_LOOK):
            pass

    def _show_out(self, source: int, console: Console) -> None:
        """Shows standard output, but for what a login shell prints before the node begins."""
        waiting = b""
        while data := os.read(source, _CHUNK):
            self._wait_for_space(console)
            if not self._started_there:
                waiting += data
                _, line, data = waiting.partition(f"{remote_node.BEGINS}\n".encode())
                if not line:
                    continue
                self._started_there = True
                self._notify(NodeBegan(self._name))
            if data:
                console.write(self, self._prefix, data)
        if not self._started_there and waiting:
            console.write(self, self._prefix, waiting)
        console.end_line(self)

    def _show_err(self, source: int, console: Console) -> None:
        """Shows standard error: events, or lines for people."""
        begun = b""
        while data := os.read(source, _CHUNK):
            self._wait_for_space(console)
            if not console.only_events:
                console.write(self, self._prefix, data)
                continue
            whole, newline, begun = (begun + data).rpartition(b"\n")
            if newline:
                console.write(self, b"", as_events(whole + newline, node=self._name))
        if begun:
            console.write(self, b"", as_events(begun, node=self._name))
        console.end_line(self)

    def _wait(self) -> None:
        code = self._process.wait()
        self._over.set()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        lifetime = time.monotonic() - self._began
        code = SSH_FAILED if code < 0 else code
        self._notify(NodeEnded(self._name, code, lifetime, self._started_there))
