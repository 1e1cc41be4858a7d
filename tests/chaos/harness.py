"""A job of real ``elastic-run`` processes that is hurt on purpose, and what must be true of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import elastic_runtime as elastic
from elastic_runtime.errors import EXIT_DONE
from tests import processes
from tests.chaos.fleet import Fleet, Lines, Node
from tests.chaos.job import Chain

_SCRIPT = Path(__file__).with_name("job.py")


@dataclass(frozen=True, slots=True)
class Note:
    """One step as one worker noted it; ``at`` in seconds on the monotonic clock."""

    at: float
    step: int
    round: int
    rank: int
    world: int
    pid: int
    worker: str


class Cluster(Fleet):
    """The nodes of a job that is restarted from its checkpoints.

    Args:
        directory: for logs, notes and checkpoints.
        endpoint: as for ``--rdzv-endpoint``.
        steps: how many steps the job makes, if it is not told to end before.
        bounds: fewest and most nodes.
        options: further options of ``elastic-run``.
        seconds: length of a step.
    """

    def __init__(
        self,
        directory: Path,
        endpoint: str,
        steps: int,
        bounds: tuple[int, int] = (1, 4),
        options: tuple[str, ...] = (),
        seconds: float = 0.01,
    ) -> None:
        self._steps = steps
        self._files: dict[Path, _NoteFile] = {}
        self._until = directory / "enough"
        self._notes = directory / "notes"
        self._notes.mkdir()
        self.checkpoint = directory / "checkpoint"
        script = [
            *(str(_SCRIPT), "--notes", str(self._notes), "--steps", str(steps)),
            *("--checkpoint", str(self.checkpoint), "--seconds", str(seconds)),
            *("--until", str(self._until)),
        ]
        super().__init__(directory, endpoint, script, bounds, options)

    # What is done to it

    def kill_worker(self, node: Node) -> None:
        """SIGKILL to the worker that the node runs now."""
        mine = {note.pid for note in self._newest_round()} & set(node.processes())
        processes.send(mine, signal.SIGKILL)

    def end_training(self) -> None:
        """The job is to end well after its present step."""
        self._until.touch()

    # What is seen of it

    def notes(self) -> list[Note]:
        """All steps that all workers have noted, in the order of time."""
        for path in self._notes.iterdir():
            self._files.setdefault(path, _NoteFile(path)).read()
        notes = (note for file in self._files.values() for note in file.notes)
        return sorted(notes, key=lambda note: note.at)

    @property
    def step(self) -> int:
        """The highest step that any worker has noted; -1: none yet."""
        return max((note.step for note in self.notes()), default=-1)

    @property
    def world(self) -> int:
        """How many ranks the newest round has that has made a step."""
        newest = self._newest_round()
        return newest[0].world if newest else 0

    @property
    def round(self) -> int:
        """The number of the newest round that has made a step."""
        return max((note.round for note in self.notes()), default=0)

    def members(self) -> list[Node]:
        """The living nodes whose workers the newest round has that has made a step, by name."""
        pids = {note.pid for note in self._newest_round()}
        return [node for node in self.nodes if node.alive and pids & set(node.processes())]

    def _newest_round(self) -> list[Note]:
        notes = self.notes()
        newest = max((note.round for note in notes), default=0)
        return [note for note in notes if note.round == newest]

    def wait_for_steps(self, more: int, world: int = 0) -> None:
        """Waits until the job has made so many more steps, in a world of this size (0: any)."""
        goal = self.step + more
        assert goal < self._steps, "the job is too short for this test"
        what = f"step {goal}" + (f" with {world} ranks" if world else "")
        self.wait(lambda: self.step >= goal and (not world or self.world == world), what)

    def finish(self, patience: float = 60.0) -> None:
        """Waits for the end of all nodes and checks everything that must always be true."""
        self.wait_for_end(patience)
        assert self.exit_codes() & {EXIT_DONE}, self.story()
        self.check_no_islands()
        self.check_checkpoint()
        self.check_logs()

    def check_no_islands(self) -> None:
        """No round trained on once a newer one had begun, and no rank existed twice in one."""
        newest = 0
        workers: dict[tuple[int, int], str] = {}
        for note in self.notes():
            assert note.round >= newest, f"round {note.round} went on beside round {newest}"
            newest = note.round
            other = workers.setdefault((note.round, note.rank), note.worker)
            assert other == note.worker, f"rank {note.rank} of round {note.round} existed twice"

    def check_checkpoint(self) -> None:
        """The newest checkpoint holds the state after the last step, each done once."""
        chain = Chain()
        steps = elastic.load(self.checkpoint, elastic.State(chain=chain))
        assert steps == self.step + 1
        assert int(chain.value) == Chain.after(steps)

    def check_logs(self) -> None:
        """What each worker has printed is still there, once."""
        logs = "".join(
            path.read_text(errors="replace")
            for path in (self._directory / "logs").rglob("stdout.log")
        )
        for worker in {note.worker for note in self.notes()}:
            assert logs.count(f"worker {worker} speaks") == 1, f"the log of {worker} is gone"


class _NoteFile:
    """The notes of one worker, read as they grow."""

    def __init__(self, path: Path) -> None:
        self.notes: list[Note] = []
        self._lines = Lines(path)
        self._name = path.name
        self._who: tuple[int, ...] = ()

    def read(self) -> None:
        for line in self._lines.new():
            numbers = tuple(int(word) for word in line.split())
            if not self._who:
                self._who = numbers
            else:
                (at, step), (round_, rank, world, pid) = numbers, self._who
                self.notes.append(Note(at / 1e9, step, round_, rank, world, pid, self._name))
