"""A job of real processes that takes snapshots, and how it is hurt."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests import processes, zygote
from tests.integration.lost_errors import tell

if TYPE_CHECKING:
    from typing import Self

_SCRIPT = Path(__file__).with_name("script.py")
_PATIENCE = 60.0


class Note(NamedTuple):
    """What a rank has said of itself."""

    word: str
    round: int
    rank: int
    pid: int
    step: int
    memory: str


class Job:
    """An ``elastic-run --local-nodes``. At the end of ``with`` nothing of it is left.

    Args:
        folder: for notes, the log and checkpoints.
        kind: of the script.
        nodes: how many.
        options: more of them, for ``elastic-run``.
        every: how often it saves to storage.
    """

    def __init__(
        self, folder: Path, kind: str, nodes: int, *options: str, every: int = 1000
    ) -> None:
        self._every = every
        self.folder = folder
        self._kind = kind
        self._mark = f"snapshots-{uuid.uuid4().hex}"
        self._log = folder / "log"
        self._others: list[subprocess.Popen[bytes]] = []
        (folder / "notes").touch()
        (folder / "hold").touch()
        bounds = ("--local-nodes", str(nodes), "--min", "1", "--max", str(nodes), *options)
        self.main = self._start(*bounds, *self._script())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        processes.end(self._mark)
        for process in (self.main, *self._others):
            process.wait()
        tell(error, self.everything(), self.story())

    def _script(self) -> tuple[str, ...]:
        return (str(_SCRIPT), self._kind, str(self.folder), str(self._every))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return zygote.start(
                [sys.executable, "-m", "elastic_runtime", *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1", processes.MARKER: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[3],
            )

    # What is done to it

    def go(self) -> None:
        """Lets it train."""
        (self.folder / "hold").unlink()

    def hold(self, world: int) -> list[Note]:
        """Stops it between two steps, after a snapshot; what its ranks say then."""
        # The first save of a job comes at once, but on a slow machine after the first snapshot:
        # then the storage has the newer state.
        self.wait(lambda: self.count("checkpoint.saved"), "the first save")
        taken = self.count("snapshot.taken")
        self.wait(lambda: self.count("snapshot.taken") > taken, "a snapshot")
        (self.folder / "hold").touch()
        return self.notes("held", world)

    def train(self, world: int) -> list[Note]:
        """Lets it train, and stops it again."""
        self.go()
        return self.hold(world)

    def kill(self, notes: list[Note]) -> None:
        """SIGKILL to workers."""
        processes.send([note.pid for note in notes], signal.SIGKILL)

    def kill_node(self, number: int) -> None:
        """SIGKILL to an agent; its workers die with it."""
        started = self.event("local.started")
        processes.send([started["pids"][number]], signal.SIGKILL)

    def add_node(self) -> None:
        """Starts one more node."""
        words = shlex.split(self.event("job.join_command")["command"])
        self._others.append(self._start(*words[3:]))

    def finish(self) -> None:
        """Has it end well."""
        (self.folder / "enough").touch()
        (self.folder / "hold").unlink(missing_ok=True)
        assert self.main.wait(_PATIENCE) == 0, self.story()

    # What is seen of it

    def pids(self) -> list[int]:
        """All its processes."""
        return processes.marked(self._mark)

    def events(self, name: str) -> list[dict[str, Any]]:
        """All events of this name so far."""
        lines = self._log.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in found if event["event"] == name]

    def count(self, name: str) -> int:
        """How many events of this name there were."""
        return len(self.events(name))

    def event(self, name: str, number: int = 1) -> dict[str, Any]:
        """The latest event of this name, once there are so many."""
        self.wait(lambda: self.count(name) >= number, f"{number} × {name}")
        return self.events(name)[-1]

    def notes(self, word: str, world: int) -> list[Note]:
        """What all ranks of the newest round have said, once all have said this."""
        found: dict[int, Note] = {}

        def said() -> bool:
            found.clear()
            notes = self._notes()
            newest = max((note.round for note in notes), default=0)
            found.update({n.rank: n for n in notes if n.round == newest and n.word == word})
            return sorted(found) == list(range(world))

        self.wait(said, f"{word} by {world} ranks")
        return [found[rank] for rank in range(world)]

    def _notes(self) -> list[Note]:
        lines = [line.split() for line in (self.folder / "notes").read_text().splitlines()]
        return [Note(line[0], *map(int, line[1:5]), line[5]) for line in lines]

    def memories(self) -> list[Path]:
        """The directories of its agents that are there."""
        return [path for name in {n.memory for n in self._notes()} if (path := Path(name)).exists()]

    def snapshots(self) -> list[Path]:
        """All files of all snapshots that are there."""
        return [file for path in self.memories() for file in path.glob("*/step-*/*")]

    def wait(self, happened: Any, what: str) -> None:
        """Waits until something is true; else fails with the log."""
        processes.wait_for(happened, _PATIENCE, what, self.story)

    def secrets(self) -> set[str]:
        """What the agents have told their workers, and nobody else shall hear."""
        return set((self.folder / "secrets").read_text().split())

    def environments(self) -> str:
        """The environments of its workers, which all processes inherit that they start."""
        return (self.folder / "environ").read_text(errors="replace")

    def everything(self) -> str:
        """All that it has said."""
        return self._log.read_text(errors="replace")

    def story(self) -> str:
        """The end of the log, for messages."""
        return self._log.read_text(errors="replace")[-6000:]
