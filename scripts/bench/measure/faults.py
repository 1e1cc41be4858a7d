"""The faults, and one measurement: a fresh job, one fault, what it cost."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scripts.bench.measure import floor
from scripts.bench.measure.contenders import CONTENDERS, ELASTIC
from scripts.bench.measure.figures import Figures, figures, settled
from scripts.bench.measure.job import Ended, Job, Node, Worker
from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scripts.bench.measure.network import Network

FIRST, MIDDLE, LAST = "first", "middle", "last"

# A job that is back must make this many new steps more before it counts as back for good.
_ENOUGH = 25
# The first start may take this long: torchrun's last call alone is 30 s.
_START_SECONDS = 150.0


@dataclass(frozen=True)
class Trial:
    """One measurement to be made.

    Attributes:
        contender: name of the launcher, or ``FLOOR``.
        nodes: how many nodes the job has before a loss, or after a join.
        fault: one of ``FAULTS``.
        victim: ``first`` (the host of a c10d store, else the node of rank 0), ``middle``, ``last``.
        after: the fault comes once the job has made this many steps.
        index: which repetition it is.
    """

    contender: str
    nodes: int
    fault: str
    victim: str
    after: int
    index: int


@dataclass(frozen=True)
class Result:
    """What came of a trial.

    Attributes:
        trial: which one.
        outcome: ``back``, or what happened instead.
        figures: None unless back.
    """

    trial: Trial
    outcome: str
    figures: Figures | None

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON."""
        cost = asdict(self.figures) if self.figures else {}
        return {**asdict(self.trial), "outcome": self.outcome, **cost}


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        nodes: how many nodes it adds to the world (negative: takes).
        strike: does it to the job; gets the victim node and its worker; returns the moment.
        workers: how many each node has.
        alone: it is measured on a job of one node, whatever sizes are asked for.
    """

    nodes: int
    strike: Callable[[Job, Node, Worker], float]
    workers: int = 1
    alone: bool = False

    def meets(self, contender: str) -> bool:
        """Whether a contender can be struck so: bare gloo ranks are workers and nothing else."""
        if contender == floor.FLOOR:
            return self.strike is _kill_worker
        return self.strike is not _kill_server or CONTENDERS[contender].program == ELASTIC


def _kill_worker(_job: Job, _node: Node, worker: Worker) -> float:
    now = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    return now


def _kill_server(_job: Job, node: Node, _worker: Worker) -> float:
    """The process that the workers are forks of; they go with it."""
    server = processes.wait_for(
        lambda: processes.fork_server(node.agent.pid, node.processes()),
        _START_SECONDS,
        f"the fork server of {node.mark}",
    )
    now = time.monotonic()
    processes.send([server], signal.SIGKILL)
    return now


def _kill_node(_job: Job, node: Node, _worker: Worker) -> float:
    return _strike_all(node, signal.SIGKILL)


def _stop_node(_job: Job, node: Node, _worker: Worker) -> float:
    return _strike_all(node, signal.SIGSTOP)


def _strike_all(node: Node, number: int) -> float:
    pids = node.processes()
    now = time.monotonic()
    processes.send(pids, number)
    # What was forked between the look and the signal.
    processes.send(set(node.processes()) - set(pids), number)
    return now


def _cut_node(job: Job, node: Node, _worker: Worker) -> float:
    assert job.network is not None
    now = time.monotonic()
    job.network.cut(node.index)
    return now


def _ask_node(_job: Job, node: Node, _worker: Worker) -> float:
    now = time.monotonic()
    node.agent.send_signal(signal.SIGTERM)
    return now


def _join(job: Job, _node: Node, _worker: Worker) -> float:
    return job.start_node().started


# The one that needs namespaces.
CUT = "node-cut"

FAULTS: Mapping[str, Fault] = {
    "worker-kill": Fault(0, _kill_worker),
    "worker-kill-of-8": Fault(0, _kill_worker, workers=8, alone=True),
    "fork-server-kill": Fault(0, _kill_server),
    "node-kill": Fault(-1, _kill_node),
    "node-term": Fault(-1, _ask_node),
    "node-stop": Fault(-1, _stop_node),
    CUT: Fault(-1, _cut_node),
    "join": Fault(+1, _join),
}


@dataclass(frozen=True)
class Ground:
    """What all trials of a run share.

    Attributes:
        etcd: ``host:port`` of the etcd server on the loopback.
        script: what is trained.
        deadline: seconds after the fault at which "not back" is the result.
        network: for ``CUT``, whose nodes reach etcd at the network's host; None: there is none.
        keep: keep the files of all jobs, not only of those that did not come back.
    """

    etcd: str
    script: Path
    deadline: float
    network: Network | None = None
    keep: bool = False


def measure(trial: Trial, directory: Path, ground: Ground) -> Result:
    """Starts a job, strikes, and waits until it is back.

    The directory is left behind if the job did not come back as it should.

    Args:
        trial: what to measure.
        directory: for the job's files; must not exist yet.
        ground: what it shares with other trials.
    """
    if trial.contender == floor.FLOOR:
        return measure_floor(trial, ground.deadline)
    network = ground.network if trial.fault == CUT else None
    etcd = f"{network.host}:{ground.etcd.rpartition(':')[2]}" if network else ground.etcd
    contender = CONTENDERS[trial.contender]
    workers = FAULTS[trial.fault].workers
    with Job(contender, directory, etcd, ground.script, network=network, workers=workers) as job:
        try:
            start(job, trial)
        except processes.Overdue as overdue:
            return Result(trial, f"did not start: {overdue}", None)
        outcome, cost = strike(job, trial, ground.deadline)
    if network:
        network.mend()
    if cost and not ground.keep:
        job.discard()
    return Result(trial, outcome, cost)


def measure_floor(trial: Trial, deadline: float) -> Result:
    """The same fault on bare gloo ranks.

    Args:
        trial: what to measure; its contender is ``FLOOR``.
        deadline: seconds.
    """
    ranks = trial.nodes * FAULTS[trial.fault].workers
    victim = {FIRST: 0, MIDDLE: ranks // 2, LAST: ranks - 1}[trial.victim]
    try:
        stall = floor.measure(ranks, victim, trial.after, deadline)
    except floor.NotBack as problem:
        return Result(trial, f"not back in {deadline:g} s: {problem}", None)
    cost = Figures(stall, full_strength=None, lost_steps=0, rounds=1, stale_steps=0)
    return Result(trial, "back", cost)


def strike(job: Job, trial: Trial, deadline: float) -> tuple[str, Figures | None]:
    """Does a trial's fault to a job that has its full world, and waits until it is back.

    Args:
        job: the job.
        trial: which fault, to whom.
        deadline: seconds to wait at most.

    Returns:
        The outcome, ``back`` or what happened instead, and what it cost if it is back.
    """
    fault = FAULTS[trial.fault]
    world = (_before(trial) + fault.nodes) * fault.workers
    victim = _victim(job, trial.victim)
    at = fault.strike(job, *victim)
    (job.directory / "fault").write_text(
        f"{trial} struck {victim[0].mark} at {at:.3f} (monotonic)\n"
    )
    try:
        job.wait(lambda: settled(job.steps(), at, world, _ENOUGH), deadline, f"{world} ranks again")
    except Ended:
        return "all nodes ended", None
    except processes.Overdue:
        return f"not back in {deadline:g} s", None
    until = time.monotonic()
    return "back", figures(job.steps(), at, world, until)


def _before(trial: Trial) -> int:
    return trial.nodes - max(0, FAULTS[trial.fault].nodes)


def start(job: Job, trial: Trial) -> None:
    """Starts the nodes that a job has before a fault, and waits until they train.

    Raises:
        Overdue: they do not.
    """
    nodes = _before(trial)
    ranks = nodes * FAULTS[trial.fault].workers
    for _ in range(nodes):
        job.start_node()

    def ready() -> bool:
        workers = job.workers()
        if not workers or workers[0].world != ranks or len(workers) != ranks:
            return False
        newest = workers[0].round
        return sum(step.round == newest for step in job.steps()) >= trial.after * ranks

    job.wait(ready, _START_SECONDS, f"{trial.after} steps of {ranks} ranks")


def _victim(job: Job, which: str) -> tuple[Node, Worker]:
    ranked = [(job.node_of(worker), worker) for worker in job.workers()]
    if job.contender.store == "c10d":
        ranked.sort(key=lambda pair: pair[0].index != 0)
    position = {FIRST: 0, MIDDLE: len(ranked) // 2, LAST: -1}[which]
    return ranked[position]
