"""Where the list of machines comes from: a file, or a program that prints it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.cli.hosts.listed_hosts import Host, read_hosts
from elastic_runtime.errors import UsageError
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds between two looks, and those that a program has.
INTERVAL = 1.0
_LONGEST_LOOK = 30.0
# Bytes: more than any list has.
_MOST = 1 << 22
_CHUNK = 1 << 16


class HostSource:
    """A list of machines that may change.

    Args:
        path: the file, or the program.
        is_program: which of them it is.

    Attributes:
        path, is_program: the same.
    """

    def __init__(self, path: str, *, is_program: bool) -> None:
        self.path = path
        self.is_program = is_program
        self._closed = threading.Event()
        self._running: subprocess.Popen[bytes] | None = None

    def again(self) -> HostSource:
        """The same list, for another job; this one may be closed."""
        return HostSource(self.path, is_program=self.is_program)

    def look(self) -> tuple[Host, ...]:
        """The list as it is now.

        Raises:
            UsageError: it cannot be had, or is none.
        """
        return read_hosts(self._ask() if self.is_program else self._read(), self.path)

    def _read(self) -> str:
        try:
            # Not a pipe, which a second look would wait for, and no device, which has no end.
            if Path(self.path).exists() and not Path(self.path).is_file():
                raise UsageError(f"{self.path} is no file")
            with Path(self.path).open("rb") as file:
                return self._decoded(file.read(_MOST + 1))
        except FileNotFoundError:
            hint = "--hosts takes a file with a host in each line"
            raise UsageError(f"there is no {self.path!r} here: {hint}") from None
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from None

    def _decoded(self, data: bytes) -> str:
        if len(data) > _MOST:
            raise self._endless()
        return data.decode("utf-8-sig", errors="replace")

    def _endless(self) -> UsageError:
        return UsageError(f"{self.path} gives more than any list of hosts has")

    def _ask(self) -> str:
        try:
            code, data, err = self._run()
        except OSError as error:
            why = error.strerror or str(error)
            if isinstance(error, PermissionError):
                why += f"; is it executable? chmod +x {self.path}"
            raise UsageError(f"{self.path} cannot be run: {why}") from None
        except subprocess.TimeoutExpired:
            raise UsageError(f"{self.path} has not ended after {_LONGEST_LOOK:g} s") from None
        if code != 0:
            lines = err.decode(errors="replace").strip().splitlines()
            said = (lines or ["nothing on standard error"])[-1]
            raise UsageError(f"{self.path} has ended with {code}: {said}")
        return self._decoded(data)

    def _run(self) -> tuple[int, bytes, bytes]:
        """Runs the program to its end: its exit code and what it has printed.

        Raises:
            OSError: it cannot be run.
            TimeoutExpired: it has not ended in time; it is killed with all that it has started.
            UsageError: it prints without end; the same.
        """
        with ExitStack() as over:
            try:
                # In a thread: a signal that ends this process is an error in the main one, and
                # could come when the program has started and nobody knows of it yet.
                try:
                    with ThreadPoolExecutor(1) as starter:
                        process = starter.submit(self._start).result()
                finally:
                    if self._running is not None:
                        over.enter_context(self._running)
                out, err = self._printed(process)
                process.wait(_LONGEST_LOOK)
            except BaseException:  # whatever ends this process, too
                self._kill()
                raise
            finally:
                self._running = None
        return process.returncode, out, err

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [_program(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._running = process
        if self._closed.is_set():
            self._kill()
        return process

    def _printed(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        """All that it prints, until nobody can print anything more."""
        deadline = time.monotonic() + _LONGEST_LOOK
        out, err = bytearray(), bytearray()
        with selectors.DefaultSelector() as waiting:
            for pipe, printed in ((process.stdout, out), (process.stderr, err)):
                assert pipe is not None
                waiting.register(pipe, selectors.EVENT_READ, printed)
            while waiting.get_map():
                for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(key.fd, _CHUNK)
                    key.data.extend(data)
                    if not data:
                        waiting.unregister(key.fileobj)
                if max(len(out), len(err)) > _MOST:
                    raise self._endless()
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(self.path, _LONGEST_LOOK)
        return bytes(out), bytes(err)

    def _kill(self) -> None:
        if (running := self._running) is not None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)

    def follow(
        self,
        before: tuple[Host, ...],
        changed: Callable[[tuple[Host, ...]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Looks again and again, in a thread of its own.

        A list counts when it has been the same twice in a row: a file may be half-written.

        Args:
            before: the list that is known.
            changed: called with another one.
            failed: called with the reason, once until it is another one or there is a list again.
        """
        threads.spawn(self._follow, before, changed, failed, name="host-list")

    def _follow(
        self,
        known: tuple[Host, ...],
        changed: Callable[[tuple[Host, ...]], None],
        failed: Callable[[str], None],
    ) -> None:
        last, trouble = known, ""
        while not self._closed.wait(INTERVAL):
            try:
                found = self.look()
            except UsageError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    failed(trouble)
                continue
            trouble = ""
            if found == last and found != known:
                known = found
                changed(found)
            last = found

    def close(self) -> None:
        """Looks no more."""
        self._closed.set()
        self._kill()


def _program(path: str) -> str:
    """What is run: a file here, or a program on the path."""
    return str(Path(path).absolute()) if Path(path).exists() else path
