"""Where the files of a worker lie: a directory for each round, node and rank, used only once.

::

    <log dir>/<run id>/round-<n>/<node>/rank-<global rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>/round-<n>/<node>/filtered_{stdout,stderr}.log

A directory that exists already is somebody's log: it is never removed and never written to
again; ``<node>-2`` and so on are taken instead.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig


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
        self._node = _one_level(config.node_name)
        self._homes: dict[int, Path] = {}

    def place(self, round_number: int, rank: int) -> Place:
        """Makes the directory for a worker that is about to be started.

        Args:
            round_number: the round.
            rank: the worker's global rank.
        """
        home = self._homes.get(round_number)
        if home is None:
            home = _new_directory(self._run / f"round-{round_number}" / self._node)
            self._homes = {round_number: home}
        return Place(str(_new_directory(home / f"rank-{rank}")), str(home))


def _one_level(name: str) -> str:
    """A name as one path component, whatever it contains."""
    return name.replace(os.sep, "_").lstrip(".") or "_"


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
