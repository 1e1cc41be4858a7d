"""One job under one launcher: its nodes as processes, and the steps that its workers note."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.bench.measure.contenders import ENVIRONMENT, Contender
from scripts.bench.measure.figures import Step
from tests import processes
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripts.bench.measure.network import Network

_HERE = Path(__file__).parent
PLAIN = _HERE / "train.py"
RESTARTED = _HERE / "train_restarted.py"


class Ended(processes.Overdue):
    """All nodes of a job have ended: what is waited for can no longer happen."""


@dataclass(frozen=True)
class Node:
    """A node that was started.

    Attributes:
        index: counts the starts of the job; node 0 hosts a c10d store.
        mark: finds all its processes.
        agent: the launcher's process.
        started: when, in seconds on the monotonic clock.
    """

    index: int
    mark: str
    agent: subprocess.Popen[bytes]
    started: float

    def processes(self) -> list[int]:
        """All its processes, the agent first."""
        pids = processes.marked(self.mark)
        return sorted(pids, key=lambda pid: pid != self.agent.pid)


@dataclass(frozen=True)
class Worker:
    """A worker as it presented itself in its log of steps."""

    pid: int
    rank: int
    world: int
    round: int


class Job:
    """A running job. Use it in a ``with`` statement: at its end nothing of it is left.

    Args:
        contender: what launches it.
        directory: for logs and checkpoints; must not exist yet.
        etcd: ``host:port`` of the etcd server.
        script: ``PLAIN`` or ``RESTARTED``.
        steps: where training ends by itself; 0: never.
        network: the nodes run in its namespaces; None: all on the loopback.
        workers: of each node.
    """

    def __init__(
        self,
        contender: Contender,
        directory: Path,
        etcd: str,
        script: Path,
        steps: int = 0,
        network: Network | None = None,
        workers: int = 1,
    ) -> None:
        self.contender = contender
        self.directory = directory
        self.nodes: list[Node] = []
        self._etcd = etcd
        self._script = _HERE / contender.script if contender.script else script
        self._steps = steps
        self._workers = workers
        self._mark = f"bench-{uuid.uuid4().hex}"
        self._run_id = uuid.uuid4().hex[:12]
        self.network = network
        host = network.address(0) if network else "127.0.0.1"
        self._endpoint = etcd if contender.store == "etcd" else f"{host}:{free_port()}"
        self._logs: dict[Path, _StepFile] = {}

    def __enter__(self) -> Job:
        (self.directory / "steps").mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self._mark)
        for node in self.nodes:
            node.agent.wait()

    def start_node(self) -> Node:
        """Starts one more node, and returns at once.

        The first one of a c10d job hosts the store: it is waited for, so that it is the first.
        """
        index = len(self.nodes)
        mark = f"{self._mark}/{index}"
        network = self.network
        inside = network.inside(index) if network else []
        address = network.address(index) if network else ""
        environment = {
            **os.environ,
            **ENVIRONMENT,
            **self.contender.environment,
            **(network.environment() if network else {}),
            processes.MARKER: mark,
        }
        arguments = self._arguments()
        command = self.contender.command(
            self._endpoint, self._run_id, arguments, address, self._workers
        )
        with (self.directory / f"node-{index}.log").open("wb") as log:
            started = time.monotonic()
            agent = subprocess.Popen(
                [*inside, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes.append(Node(index, mark, agent, started))
        if index == 0 and self.contender.store == "c10d":
            self.wait(lambda: _listens(self._endpoint), 60, "its store")
        return self.nodes[-1]

    def steps(self) -> list[Step]:
        """All steps that the workers have noted so far."""
        return [step for log in self._follow() for step in log.steps]

    def workers(self) -> list[Worker]:
        """The workers of the newest round that has made a step, in rank order."""
        logs = [log for log in self._follow() if log.steps and log.who]
        if not logs:
            return []
        newest = max(logs, key=lambda log: log.steps[0].at).who.round
        found = (log.who for log in logs if log.who.round == newest)
        return sorted(found, key=lambda worker: worker.rank)

    def node_of(self, worker: Worker) -> Node:
        """The node that a worker runs on.

        Raises:
            LookupError: the worker is gone.
        """
        mark = processes.mark_of(worker.pid)
        for node in self.nodes:
            if node.mark == mark:
                return node
        raise LookupError(f"worker {worker.pid} of rank {worker.rank} is no longer there")

    def wait(self, happened: Callable[[], bool], patience: float, what: str) -> None:
        """Waits until something is true of the job.

        Raises:
            Overdue: it was not within ``patience`` seconds.
            Ended: all nodes have ended before.
        """

        def look() -> bool:
            if happened():
                return True
            if all(node.agent.poll() is not None for node in self.nodes):
                raise Ended(f"all nodes have ended; see {self.directory}")
            return False

        name = f"{self.contender.name}: {what}; see {self.directory}"
        processes.wait_for(look, patience, name)

    def discard(self) -> None:
        """Removes its directory."""
        shutil.rmtree(self.directory)

    def _arguments(self) -> list[str]:
        steps = ["--steps", str(self._steps)] if self._steps else []
        where = ["--notes", str(self.directory / "steps")]
        saved = ["--checkpoint", str(self.directory / "checkpoint")]
        return [str(self._script), *where, *saved, *steps]

    def _follow(self) -> list[_StepFile]:
        for path in (self.directory / "steps").glob("*.steps"):
            if path not in self._logs:
                self._logs[path] = _StepFile(path)
        for log in self._logs.values():
            log.read()
        return list(self._logs.values())


class _StepFile:
    """What one worker has noted, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.steps: list[Step] = []
        self.who = Worker(0, 0, 0, 0)
        self._path = path
        self._offset = 0

    def read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        if line.startswith(b"{"):
            who = json.loads(line)
            self.who = Worker(who["pid"], who["rank"], who["world"], who["round"])
            return
        moment, step = line.split()
        who = self.who
        self.steps.append(Step(int(moment) / 1e9, int(step), who.round, who.world, who.rank))


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False
