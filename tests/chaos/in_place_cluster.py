"""A job in place that is hurt, and everything that is known of it: histories, strikes, sizes."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from elastic_runtime.errors import EXIT_DONE, EXIT_LEFT
from tests import processes
from tests.chaos.fleet import Fleet, Lines, Node
from tests.chaos.in_place_job import Points, learn, network, sampler
from tests.chaos.in_place_plan import LOSSES, Kind, Pace, Target
from tests.model.history import (
    Committed,
    Entered,
    Left,
    Process,
    Strike,
    parse,
    violations,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from tests.chaos.in_place_plan import Fault
    from tests.etcd_server import EtcdServer
    from tests.model.history import Record

_SCRIPT = Path(__file__).with_name("in_place_job.py")
_OPTIONS = ("--lease-ttl", "1", "--last-call", "1", "--max-restarts", "0")
# A stopped node goes on after so many seconds.
_STOPPED = 5.0
# A round counts once it has made so many steps.
_STEPS = 3
# All ranks have seen the goal long before they get there.
_AHEAD = 40


@dataclass(frozen=True, slots=True)
class Size:
    """What a process takes: memory of its own in KiB, descriptors, threads."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """That of a process now."""
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(fields["RssAnon"].split()[0]), descriptors, int(fields["Threads"]))


class InPlaceCluster(Fleet):
    """The nodes of one job in place, of one worker each.

    The first node is never killed nor asked to leave, only stopped: it shows what a long life
    costs.

    Args:
        directory: for logs, histories and weights.
        etcd: where the nodes meet.
        seconds: length of a step.
        bounds: fewest and most nodes.
        options: further options of ``elastic-run``.
    """

    def __init__(
        self,
        directory: Path,
        etcd: EtcdServer,
        seconds: float = 0.02,
        bounds: tuple[int, int] = (1, 4),
        options: tuple[str, ...] = _OPTIONS,
    ) -> None:
        self.strikes: list[Strike] = []
        self.sizes: list[tuple[Size, Size]] = []  # of the first node's agent and worker
        self._etcd = etcd
        self._goal = directory / "goal"
        self._histories, self._weights = directory / "histories", directory / "weights"
        self._histories.mkdir()
        self._weights.mkdir()
        self._lines: dict[Path, Lines] = {}
        self._records: list[Record] = []
        self._processes: dict[str, Process] = {}
        self._rounds: dict[int, list[Record]] = defaultdict(list)
        self._struck: tuple[Kind | None, int, int] = (None, 0, 0)  # the last fault: round, step
        self._nodes_of: dict[str, Node] = {}
        self._gone: dict[str, int] = {}  # by the node's name: the exit code it must have
        self._elders: list[Node] = []  # the oldest first: it leads
        self._stopped: tuple[Node, float] | None = None
        script = [
            *(str(_SCRIPT), "--histories", str(self._histories), "--goal", str(self._goal)),
            *("--weights", str(self._weights), "--seconds", str(seconds)),
        ]
        super().__init__(directory, f"etcd://{etcd.endpoint}", script, bounds, options)

    def start(self, count: int = 1) -> list[Node]:
        """Starts nodes, and returns at once."""
        made = super().start(count)
        self._elders += made
        self._nodes_of |= {node.mark: node for node in made}
        return made

    # Faults

    def strike(self, fault: Fault) -> str:
        """Waits until it is time for a fault, and brings it about; returns what was done."""
        self._await(fault.pace)
        self._struck = fault.kind, self.round, self.step
        match fault.kind:
            case Kind.JOIN:
                return self.start()[0].name
            case Kind.ETCD:
                self._etcd.restart()
                return "etcd"
            case Kind.RESUME:
                return self._resume()
        victim = self._victim(fault)
        worker = self._seats()[victim.mark]
        if fault.kind is Kind.KILL_WORKER:
            self._note([worker], "killed")
            processes.send([worker.pid], signal.SIGKILL)
            return victim.name
        self._elders.remove(victim)
        mine = [one for one in self._processes.values() if one.mark == victim.mark]
        living = [one for one in mine if processes.state(one.pid)]
        if fault.kind is Kind.KILL_NODE:
            self._gone[victim.name] = -signal.SIGKILL
            self._note(living, "killed")
            self.kill_node(victim)
        elif fault.kind is Kind.STOP_NODE:
            self._stopped = victim, time.monotonic()
            self._note(living, "stopped")
            self.stop_node(victim)
        elif fault.kind is Kind.ASK:
            self._gone[victim.name] = EXIT_LEFT
            self._note(living, "asked")
            self.ask_to_leave(victim)
        return victim.name

    def _resume(self) -> str:
        assert self._stopped is not None
        node, since = self._stopped
        self.wait(lambda: time.monotonic() > since + _STOPPED, "five seconds")
        self._stopped = None
        self._elders.append(node)  # its key is gone, and it registers anew
        processes.send(node.processes(), signal.SIGCONT)
        return node.name

    def _note(self, whom: list[Process], kind: Literal["killed", "stopped", "asked"]) -> None:
        now = time.monotonic_ns()
        self.strikes += [Strike(now, one.name, kind) for one in whom]

    def _victim(self, fault: Fault) -> Node:
        """The node that a fault is meant for, or the one after it if that one is to be spared."""
        seats = self._seats()
        killed = {strike.process for strike in self.strikes if strike.kind == "killed"}
        first, *_ = self.nodes
        able = [
            node
            for node in map(self._nodes_of.__getitem__, seats)
            if node in self._elders
            and processes.state(seats[node.mark].pid) not in ("", "Z")
            and seats[node.mark].name not in killed
            and (node is not first or fault.kind is Kind.STOP_NODE)
        ]
        assert able, f"nobody left to strike among {list(seats)}\n{self.story()}"
        match fault.target:
            case Target.LEADER:
                return min(able, key=self._elders.index)
            case Target.FIRST:
                return able[0]
            case Target.MIDDLE:
                return able[len(able) // 2]
            case Target.LAST:
                return able[-1]

    # What is seen

    def read(self) -> None:
        """Takes in what the histories say by now; a node that has ended by itself is a failure."""
        ended = [n.name for n in self.nodes if not n.alive and n.name not in self._gone]
        assert self._goal.exists() or not ended, f"{ended} ended by themselves\n{self.story()}"
        for path in self._histories.iterdir():
            for line in self._lines.setdefault(path, Lines(path)).new():
                said = parse(path.name, line)
                if isinstance(said, Process):
                    self._processes[said.name] = said
                elif said is not None:
                    self._records.append(said)
                    self._rounds[said.round].append(said)

    @property
    def round(self) -> int:
        """The newest round in which anybody has begun to train."""
        return max(self._rounds, default=0)

    @property
    def step(self) -> int:
        """The furthest step that anybody has committed in the newest round."""
        here = (one for one in self._rounds[self.round] if isinstance(one, Entered | Committed))
        return max((one.step for one in here), default=0)

    def _seats(self) -> dict[str, Process]:
        """By the marks of their nodes, the processes of the newest round in rank order."""
        entered = [one for one in self._rounds[self.round] if isinstance(one, Entered)]
        ranked = [self._processes[one.process] for one in sorted(entered, key=lambda e: e.rank)]
        return {one.mark: one for one in ranked}

    @property
    def _running(self) -> int:
        return len(self._elders)

    def _await(self, pace: Pace) -> None:
        if pace is Pace.CALM:
            self._until_calm()
        elif pace is Pace.EARLY:
            self.wait(self._goes_on, "steps since the last fault")
        elif pace is Pace.SEALING:
            processes.wait_for(self._is_left, 60.0, "a rank that leaves", self.story, pause=0.001)
        self.read()

    def _goes_on(self) -> bool:
        """Whether the job has made steps since the last fault, in another round if that broke."""
        self.read()
        kind, number, step = self._struck
        here = self._rounds[self.round]
        if kind in LOSSES:
            steps = {one.step for one in here if isinstance(one, Committed)}
            return self.round > number and len(steps) >= _STEPS
        return self.step >= step + _STEPS

    def _is_full(self) -> bool:
        worlds = [one.world for one in self._rounds[self.round] if isinstance(one, Entered)]
        return worlds == [len(self._elders)] * len(self._elders)

    def _is_left(self) -> bool:
        self.read()
        _, number, _ = self._struck
        left = any(isinstance(one, Left) for one in self._rounds[number])
        return left or self.round > number

    def _until_calm(self) -> None:
        """Waits until all nodes train together, and takes the first one's size."""
        count = len(self._elders)
        self.wait(lambda: self._goes_on() and self._is_full(), f"steps with {count} ranks")
        first, *_ = self.nodes
        worker = self._seats().get(first.mark)
        if worker:
            self.sizes.append((Size.of(first.agent.pid), Size.of(worker.pid)))

    # The end

    def finish(self) -> None:
        """Lets the job come to its last step, and checks all that must be true of it."""
        self._until_calm()
        ranks, goal = len(self._elders), self.step + _AHEAD
        draft = self._goal.with_suffix(".draft")
        draft.write_text(str(goal))
        draft.rename(self._goal)
        self.wait_for_end(60.0)
        codes = {node.name: node.agent.returncode for node in self.nodes}
        assert codes == dict.fromkeys(codes, EXIT_DONE) | self._gone, self.story()
        self.check(goal)
        saved = [torch.load(path) for path in self._weights.iterdir()]
        assert len(saved) == ranks
        for name, expected in _weights_after(goal).items():
            for weights in saved:
                torch.testing.assert_close(weights[name], expected, rtol=0, atol=1e-5)

    def check(self, steps: int) -> None:
        """The history so far keeps the guarantee."""
        self.read()
        batches = list(islice(_batches(), steps + 1))
        found = violations(self._records, self.strikes, lambda step: batches[step - 1])
        # The first ones tell most: what goes wrong once is wrong at every later step.
        assert not found, "\n".join([*found[:10], self.story()])


def _batches() -> Iterator[list[int]]:
    """All global batches, one after the other."""
    order = sampler(rank=0, world=1)
    while True:
        yield from order
        order.epoch += 1


def _weights_after(steps: int) -> dict[str, torch.Tensor]:
    """The weights of a single process that nothing happens to."""
    model, optim = network()
    points = Points()
    for batch in islice(_batches(), steps):
        _, inputs, targets = zip(*(points[index] for index in batch), strict=True)
        learn(model, optim, (batch, torch.stack(inputs), torch.stack(targets)))
    return model.state_dict()
