"""The error, and the last words, that a launcher leaves behind for the scheduler that started it.

As under torchrun, ``TORCHELASTIC_ERROR_FILE`` of the launcher's own environment names the file, and
it has the format of ``torch.distributed.elastic.multiprocessing.errors``: the error of the worker
that has failed first, or that of the launcher.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from elastic_runtime.reporting.last_words import ENV_LAST_WORDS, last_words
from elastic_runtime.worker.worker_main import ENV_ERROR_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def leave_error(summary: str, *, traceback: str = "", moment: float = 0.0, code: int = 0) -> None:
    """Writes the launcher's error file, if one is asked for; an older one is overwritten.

    That it cannot be written is said, and changes no exit code.

    Args:
        summary: the type of the error, a colon, and its text.
        traceback: as Python prints it; "" if there is none.
        moment: when it happened, in seconds since the epoch; 0: now.
        code: exit code of the worker that has failed, or minus a signal's number; 0: none has.
    """
    path = os.environ.get(ENV_ERROR_FILE)
    if not path:
        return
    extra = {"py_callstack": traceback or summary, "timestamp": str(int(moment or time.time()))}
    message: dict[str, object] = {"message": summary, "extraInfo": extra}
    if code:
        message["errorCode"] = code  # as torchrun adds it to what the worker has written
    _write_or_say(path, json.dumps({"message": message}).encode(), "error file")


def leave_last_words(message: str, report: Mapping[str, Any] | None = None) -> None:
    """Writes the last words of this process, if they are asked for (``reporting.last_words``).

    Args:
        message: for people.
        report: as the agent's ``/status``; None: there was no agent yet.
    """
    if path := os.environ.get(ENV_LAST_WORDS):
        _write_or_say(path, last_words(message, report), "last words")


class ErrorsOfNodes:
    """Keeps apart the errors of nodes that one launcher starts, as they have one file together.

    Args:
        environ: the nodes' environment; nothing is kept if it names no file.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._wanted = environ.get(ENV_ERROR_FILE)
        self._kept: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        if self._wanted:
            self._kept = TemporaryDirectory(prefix="elastic-errors-")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._kept is not None:
            self._kept.cleanup()

    def environ(self, node: str) -> dict[str, str]:
        """The environment of a node."""
        own = {} if self._kept is None else {ENV_ERROR_FILE: self._path(node)}
        return {**self._environ, **own}

    def hand_on(self, nodes: Iterable[str]) -> None:
        """Leaves the error of one of these nodes: of that whose worker has failed, and first.

        A node that was only informed of the end has left that, without a worker's exit code.
        """
        if self._kept is None or not self._wanted:
            return
        left = [Path(path).read_bytes() for path in map(self._path, nodes) if os.path.isfile(path)]
        if left:
            _write_or_say(self._wanted, min(left, key=_distance), "error file")

    def _path(self, node: str) -> str:
        assert self._kept is not None
        return os.path.join(self._kept.name, f"{quote(node, safe='')}.json")


def _distance(error: bytes) -> tuple[bool, int]:
    """The order of errors: those of a worker come first, and then the earlier ones."""
    message = json.loads(error)["message"]
    return "errorCode" not in message, int(message["extraInfo"]["timestamp"])


def _write_or_say(path: str, data: bytes, what: str) -> None:
    try:
        _write(os.path.realpath(path), data)
    except OSError as error:
        why = error.strerror or str(error)
        sys.stderr.write(f"elastic-run: the {what} {path} cannot be written: {why}\n")


def _write(path: str, data: bytes) -> None:
    """Writes a file as a whole or not at all, where its place allows that."""
    draft = f"{path}.{os.getpid()}"
    try:
        # Never put in place of a device, or of anything else that another process reads from.
        if not os.path.lexists(path) or stat.S_ISREG(os.stat(path).st_mode):
            with open(draft, "xb") as file:
                file.write(data)
            os.replace(draft, path)
            return
    except OSError:  # a single file that was mounted into a container, for one
        with suppress(OSError):
            os.unlink(draft)
    # Without waiting for a reader of a pipe.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)
