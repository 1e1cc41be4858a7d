"""Where the files of a worker lie: a directory for each round, node and rank, used only once.

::

    <log dir>/<run id>/round-<n>/<node>/rank-<global rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>/round-<n>/<node>/filtered_{stdout,stderr}.log

A directory that exists already is somebody's log: it is never removed and never written to
again; ``<node>-2`` and so on are taken instead. Of its own directories an agent keeps those of the
first round and of the newest ones.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.agent.logfile import FULL
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig

# Bytes of a name in a path: the 255 of Linux, with room for a number behind it.
_LONGEST = 240


@dataclass(frozen=True)
class Place:
    """The directory of one worker in one round; it exists, and was empty when it was handed out.

    Attributes:
        directory: the worker's own.
        home: the node's in this round.
    """

    directory: str
    home: str

    @property
    def error_file(self) -> str:
        """Where the worker writes its error, in torch's format."""
        return os.path.join(self.directory, "error.json")

    def log(self, stream: str) -> str:
        """Where its ``stdout`` or ``stderr`` is written, if it is."""
        return os.path.join(self.directory, f"{stream}.log")

    def filtered(self, stream: str) -> str:
        """Where the chosen lines of all workers' ``stdout`` or ``stderr`` are written."""
        return os.path.join(self.home, f"filtered_{stream}.log")


class LogDirs:
    """Hands out places.

    Without a log directory, error files lie in the agent's private one and end with it; logs that
    are asked for all the same (``--redirects``, ``--tee``) lie in a temporary one that is kept.
    """

    def __init__(self, config: JobConfig, private: str) -> None:
        """Makes sure that the directory can be written to.

        Args:
            config: the settings.
            private: a directory of the agent's that it removes at its end.

        Raises:
            UsageError: the log directory is a file, or cannot be made or written to.
        """
        output = config.output
        if output.log_dir:
            self.root = _writable(output.log_dir)
        elif output.redirects or output.tee:
            self.root = Path(tempfile.mkdtemp(prefix="elastic-run-"))
        else:
            self.root = Path(private, "logs")
        self._run = self.root / _one_level(config.run_id)
        self._spare = Path(private, "logs", _one_level(config.run_id))
        self._node = _one_level(config.node_name)
        self._keep = output.keep
        # What this agent has made, by round; the one whose worker has ended last comes last.
        self._first = 0
        self._homes: dict[int, Path] = {}
        self._used: dict[int, set[str]] = {}  # by round: the directories of living workers

    def place(self, round_number: int, rank: int) -> Place:
        """Makes the directory for a worker that is about to be started.

        Args:
            round_number: the round.
            rank: the worker's global rank.
        """
        try:
            return self._place(round_number, rank)
        except OSError as error:
            if error.errno not in FULL or self._run == self._spare:
                raise
        # There is no room for another directory: its worker starts all the same.
        home = self._spare / f"round-{round_number}" / self._node
        return Place(str(_new_directory(home / f"rank-{rank}")), str(home))

    def _place(self, round_number: int, rank: int) -> Place:
        home = self._homes.get(round_number)
        if home is None:
            self._forget()
            home = _new_directory(self._run / f"round-{round_number}" / self._node)
            self._homes[round_number] = home
            self._first = self._first or round_number
        directory = str(_new_directory(home / f"rank-{rank}"))
        self._used.setdefault(round_number, set()).add(directory)
        return Place(directory, str(home))

    def ended(self, round_number: int, directory: str) -> None:
        """Says that a worker has ended.

        Args:
            round_number: the round that it was started for.
            directory: its own.
        """
        self._used.get(round_number, set()).discard(directory)
        if round_number in self._homes:
            self._homes[round_number] = self._homes.pop(round_number)

    def _forget(self) -> None:
        """Removes the oldest directories, so that there is room for another round."""
        ended = [n for n in self._homes if n != self._first and not self._used.get(n)]
        if not self._keep:
            return
        # Beside the first and the new one; the last that has ended may be what ends the job.
        for number in ended[: -max(1, self._keep - 2)]:
            home = self._homes.pop(number)
            self._used.pop(number, None)
            shutil.rmtree(home, ignore_errors=True)
            with suppress(OSError):
                home.parent.rmdir()  # that of the round, if no other node is in it


def _one_level(name: str) -> str:
    """A name as one path component, whatever it contains and however long it is."""
    plain = name.replace(os.sep, "_").lstrip(".") or "_"
    encoded = os.fsencode(plain)
    if len(encoded) <= _LONGEST:
        return plain
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: _LONGEST - 17].decode(errors='ignore')}-{digest}"


def _writable(log_dir: str) -> Path:
    path = Path(log_dir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"--log-dir {path} cannot be used ({error.strerror}): name a directory that can be"
            " written to"
        ) from None
    return path


def _new_directory(wanted: Path) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("counting has no end")
