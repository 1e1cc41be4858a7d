"""Where the files of a worker lie: a directory for each round, node and rank, used only once.

::

    <log dir>/<run id>/round-<n>/<node>/rank-<global rank>/{stdout.log,stderr.log,error.json}
    <log dir>/<run id>/round-<n>/<node>/filtered_{stdout,stderr}.log

A log directory may be full, read-only, gone, or hang; no worker and no main loop is to wait for
it or to fail for it. So only the thread that writes the logs (``LogWriter``) ever touches it. A
worker leaves its error in the agent's runtime directory, in a tree of the same form, and that
thread copies it when the worker has ended.

A directory that exists already is somebody's log: it is never removed and never written to
again; ``<node>-2`` and so on are taken instead. Of its own directories an agent keeps those of the
first round and of the newest ones; those in its runtime directory are few, whatever is asked for.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.agent.logs.error_files import read_regular
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig

# Of so many rounds at most the errors are kept in the runtime directory, whatever is kept in the
# log directory: the report names those of the last one.
_PRIVATE_ROUNDS = 8
# Bytes of a name in a path: the 255 of Linux, less some for a number behind it.
_LONGEST = 240


class WorkerDir:
    """Where the files of one worker in one round lie.

    What says that it touches the log directory is for the thread that writes the logs.

    Attributes:
        round: the round.
        directory: the worker's own, in the agent's runtime directory, or where it would be if it
            could have been made.
        error_file: where the worker writes its error, in torch's format.
        published: where the error lies in the log directory, "" until it does.
    """

    def __init__(self, round_number: int, rank: int, directory: str, logs: _Rounds | None) -> None:
        self.round = round_number
        self.directory = directory
        self.error_file = os.path.join(directory, "error.json")
        self.published = ""
        self._rank = rank
        self._logs = logs
        self._own: Path | None = None  # in the log directory

    @property
    def logged(self) -> bool:
        """There is a log directory: ``make`` and ``end`` are to be called."""
        return self._logs is not None

    def make(self) -> None:
        """Makes the worker's directory in the log directory, unless it is there.

        Raises:
            OSError: it cannot be made.
        """
        self._made()

    def log(self, stream: str) -> str:
        """Where its ``stdout`` or ``stderr`` is written, if it is; touches the log directory.

        Raises:
            OSError: its directory cannot be made.
        """
        return str(self._made() / f"{stream}.log")

    def filtered(self, stream: str) -> str:
        """Where the chosen lines of all workers' ``stdout`` or ``stderr`` are written.

        Touches the log directory.

        Raises:
            OSError: the directory of this node and round cannot be made.
        """
        return str(self._made().parent / f"filtered_{stream}.log")

    def end(self) -> None:
        """Says that the worker has ended, and copies its error to the log directory.

        Raises:
            OSError: it cannot be copied; nothing of it is there then.
        """
        if self._logs is None:
            return
        error = read_regular(self.error_file)
        try:
            if error is not None:
                path = self._made() / "error.json"
                _write_whole(path, error)
                self.published = str(path)
        finally:
            if self._own is not None:
                self._logs.ended(self.round, self._own)

    def _made(self) -> Path:
        if self._logs is None:
            return Path(self.directory)
        if self._own is None:
            self._own = self._logs.make(self.round, self._rank)
        else:  # somebody may have removed it
            self._own.mkdir(parents=True, exist_ok=True)
        return self._own


class LogDirs:
    """Hands out directories of workers, in the agent's main thread.

    Without a log directory, error files lie in the agent's private one and end with it; logs that
    are asked for all the same (``--redirects``, ``--tee``) lie in a temporary one that is kept.
    """

    def __init__(self, config: JobConfig, runtime_dir: str) -> None:
        """Makes sure that the directory can be written to.

        Args:
            config: the settings.
            runtime_dir: the agent's own directory, which it removes at its end.

        Raises:
            UsageError: the log directory is a file, or cannot be made or written to.
        """
        output = config.output
        self.root: Path | None = None
        if output.log_dir:
            self.root = _writable(output.log_dir)
        elif output.redirects or output.tee:
            self.root = _temporary()
        run, node = _one_level(config.run_id), _one_level(config.node_name)
        few = min(output.keep or _PRIVATE_ROUNDS, _PRIVATE_ROUNDS)
        self._private = _Rounds(Path(runtime_dir, "logs", run), node, few)
        self._logs = _Rounds(self.root / run, node, output.keep) if self.root else None

    def worker_dir(self, round_number: int, rank: int) -> WorkerDir:
        """Makes the directory for the error of a worker that is to be started, if that can be.

        Args:
            round_number: the round.
            rank: the worker's global rank.
        """
        try:
            directory = self._private.make(round_number, rank)
        except OSError:  # no space: what its worker raises is on its standard error as well
            directory = self._private.root / "nowhere" / f"rank-{rank}"
        return WorkerDir(round_number, rank, str(directory), self._logs)

    def ended(self, worker_dir: WorkerDir) -> None:
        """Says that a worker has ended, and that its error has been read."""
        self._private.ended(worker_dir.round, Path(worker_dir.directory))


class _Rounds:
    """The directories below one root, by round; of one thread.

    Args:
        root: the root.
        node: the name of this node's directory in that of a round.
        keep: how many rounds are kept; 0: all.
    """

    def __init__(self, root: Path, node: str, keep: int) -> None:
        self.root = root
        self._node = node
        self._keep = keep
        # What this agent has made, by round; the one whose worker has ended last comes last.
        self._first = 0
        self._homes: dict[int, Path] = {}
        self._used: dict[int, set[Path]] = {}  # by round: the directories of living workers

    def make(self, round_number: int, rank: int) -> Path:
        """Makes the directory of a worker; it is new, and empty.

        Args:
            round_number: the round.
            rank: the worker's global rank.

        Raises:
            OSError: it cannot be made.
        """
        home = self._homes.get(round_number)
        if home is None:
            self._forget()
            home = _new_directory(self.root / f"round-{round_number}" / self._node)
            self._homes[round_number] = home
            self._first = self._first or round_number
        directory = _new_directory(home / f"rank-{rank}")
        self._used.setdefault(round_number, set()).add(directory)
        return directory

    def ended(self, round_number: int, directory: Path) -> None:
        """Says that a worker has ended.

        Args:
            round_number: the round that it was started for.
            directory: its own.
        """
        self._used.get(round_number, set()).discard(directory)
        if round_number in self._homes:
            self._homes[round_number] = self._homes.pop(round_number)

    def _forget(self) -> None:
        """Removes the oldest directories, so that there is space for another round."""
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


def _temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="elastic-run-"))
    except OSError as error:
        raise UsageError(
            f"no directory for logs can be made where temporary files are kept ({error}): name one"
            " with --log-dir, or set TMPDIR"
        ) from None


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


def _write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is there as a whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_bytes(data)
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
