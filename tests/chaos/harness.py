"""A job of real ``elastic-run`` processes that is hurt on purpose, and what must be true of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime import Checkpointer
from elastic_runtime.errors import EXIT_DONE
from tests import processes
from tests.chaos.job import Chain

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPT = Path(__file__).with_name("job.py")
_PATIENCE = 60.0


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


@dataclass(frozen=True)
class Node:
    """One ``elastic-run`` process and all that it started."""

    name: str
    mark: str
    agent: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> list[int]:
        """All its living processes."""
        return processes.marked(self.mark)

    def events(self) -> list[dict[str, Any]]:
        """The events it has logged so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def alive(self) -> bool:
        """Its agent runs (perhaps stopped)."""
        return self.agent.poll() is None


class Cluster:
    """The nodes of one job. Use it in a ``with`` statement: at its end nothing of it is left.

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
        self.nodes: list[Node] = []
        self._directory = directory
        self._steps = steps
        self._mark = f"chaos-{uuid.uuid4().hex}"
        self._files: dict[Path, _NoteFile] = {}
        self._until = directory / "enough"
        self._notes = directory / "notes"
        self._notes.mkdir()
        least, most = (str(bound) for bound in bounds)
        self._command = [
            *(sys.executable, "-m", "elastic_runtime", "--min", least, "--max", most),
            *("--rdzv-endpoint", endpoint, "--run-id", f"chaos-{uuid.uuid4().hex[:8]}"),
            *("--log-format", "json", "--log-dir", str(directory / "logs"), "--redirects", "3"),
            *(*options, str(_SCRIPT), "--notes", str(self._notes), "--steps", str(steps)),
            *("--checkpoint", str(self.checkpoint), "--seconds", str(seconds)),
            *("--until", str(self._until)),
        ]

    @property
    def checkpoint(self) -> Path:
        """The directory of the job's checkpoints."""
        return self._directory / "checkpoint"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self._mark)
        for node in self.nodes:
            node.agent.wait()

    # What is done to it

    def start(self, count: int = 1) -> list[Node]:
        """Starts nodes, and returns at once."""
        return [self._start() for _ in range(count)]

    def _start(self) -> Node:
        name = f"n{len(self.nodes)}"
        mark = f"{self._mark}/{name}"
        log = self._directory / f"{name}.log"
        with log.open("wb") as out:
            agent = subprocess.Popen(
                [*self._command[:3], "--node-name", name, *self._command[3:]],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RES_OPTIONS": "timeout:1 attempts:1",
                    processes.MARKER: mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes.append(Node(name, mark, agent, log))
        return self.nodes[-1]

    def kill_worker(self, node: Node) -> None:
        """SIGKILL to the worker that the node runs now."""
        mine = {note.pid for note in self._newest_round()} & set(node.processes())
        processes.send(mine, signal.SIGKILL)

    def kill_agent(self, node: Node) -> None:
        """SIGKILL to the agent alone."""
        node.agent.kill()

    def kill_node(self, node: Node) -> None:
        """SIGKILL to all of the node's processes, as when its machine dies."""
        processes.send(node.processes(), signal.SIGKILL)

    def stop_node(self, node: Node) -> None:
        """SIGSTOP to all of them, as when its machine no longer answers."""
        processes.send(node.processes(), signal.SIGSTOP)

    def ask_to_leave(self, node: Node) -> None:
        """SIGTERM to the agent."""
        node.agent.terminate()

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

    def wait(self, happened: Callable[[], bool], what: str, patience: float = _PATIENCE) -> None:
        """Waits until something is true of the job; else fails with the ends of all logs."""
        processes.wait_for(happened, patience, what, self.story, pause=0.05)

    def wait_for_steps(self, more: int, world: int = 0) -> None:
        """Waits until the job has made so many more steps, in a world of this size (0: any)."""
        goal = self.step + more
        assert goal < self._steps, "the job is too short for this test"
        what = f"step {goal}" + (f" with {world} ranks" if world else "")
        self.wait(lambda: self.step >= goal and (not world or self.world == world), what)

    def finish(self, patience: float = 120.0) -> None:
        """Waits for the end of all nodes and checks everything that must always be true."""
        self.wait(lambda: not any(node.alive for node in self.nodes), "the end", patience)
        self.wait(lambda: not processes.marked(self._mark), f"no process left{self._left()}", 10.0)
        assert self.exit_codes() & {EXIT_DONE}, self.story()
        self.check_no_islands()
        self.check_checkpoint()
        self.check_logs()

    def exit_codes(self) -> set[int]:
        """The exit codes of all nodes that have ended."""
        return {node.agent.returncode for node in self.nodes if not node.alive}

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
        checkpointer = Checkpointer(self.checkpoint, {"chain": chain})
        steps = checkpointer.resume()
        checkpointer.close()
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

    def story(self) -> str:
        """The ends of all logs, for messages."""
        ends = []
        for node in self.nodes:
            code = node.agent.poll()
            lines = node.log.read_text(errors="replace").splitlines()
            text = "\n".join(line for line in lines if '"checkpoint.saved"' not in line)
            ends.append(f"--- {node.name} (exit code {code}) ---\n{text[-3000:]}")
        return "\n".join(ends)

    def _left(self) -> str:
        return "".join(f"\n{pid} {processes.command(pid)}" for pid in processes.marked(self._mark))


def repeated_steps(notes: list[Note]) -> int:
    """How many steps were done again in a later round."""
    done: dict[int, int] = {}
    again = set()
    for note in notes:
        first = done.setdefault(note.step, note.round)
        if note.round != first:
            again.add((note.round, note.step))
    return len(again)


def now() -> float:
    """The clock that notes are written by."""
    return time.monotonic()


class _NoteFile:
    """The notes of one worker, read as they grow."""

    def __init__(self, path: Path) -> None:
        self.notes: list[Note] = []
        self._path = path
        self._offset = 0
        self._who: tuple[int, ...] = ()

    def read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            numbers = tuple(int(word) for word in line.split())
            if not self._who:
                self._who = numbers
            else:
                (at, step), (round_, rank, world, pid) = numbers, self._who
                name = self._path.name
                self.notes.append(Note(at / 1e9, step, round_, rank, world, pid, name))
