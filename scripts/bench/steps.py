#!/usr/bin/env python3
"""What a launcher costs while nothing goes wrong: step times, and the agents' processor time.

Runs of the contenders alternate (ABAB…), each a fresh job of two nodes that trains undisturbed.
Step times are those of all ranks, from the notes of the workers; processor time is read from
/proc, for the agents and for what runs beside the workers (a fork server).

    scripts/bench/steps.py --repeat 3 --seconds 30 --json /tmp/steps.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.measure.contenders import CONTENDERS
from scripts.bench.measure.figures import Step, quantile
from scripts.bench.measure.job import PLAIN, Job, Node
from scripts.bench.measure.report import machine
from tests import processes
from tests.etcd_server import etcd_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NODES = 2
_WARM_UP_STEPS = 50
_START_SECONDS = 150.0


@dataclass(frozen=True)
class Undisturbed:
    """One run.

    Attributes:
        contender: the launcher.
        median: of the step times, in milliseconds.
        mean: of the step times, in milliseconds.
        p95: their 95th percentile, in milliseconds.
        agent: processor time of one agent, in percent of a core (the mean of the nodes).
        beside: the same for what runs beside agent and workers.
        steps: how many step times were taken.
    """

    contender: str
    median: float
    mean: float
    p95: float
    agent: float
    beside: float
    steps: int


def main() -> int:
    """Runs the benchmark."""
    args = _arguments()
    signal.signal(signal.SIGTERM, _interrupted)
    runs: list[Undisturbed] = []
    try:
        with tempfile.TemporaryDirectory(prefix="steps-") as directory, etcd_process() as etcd:
            for index, name in itertools.product(range(args.repeat), args.contenders):
                where = Path(directory, f"{index}-{name}")
                runs.append(run(name, where, etcd.endpoint, args.seconds))
                print(_line(runs[-1]), flush=True)
    except KeyboardInterrupt:
        print("interrupted; what follows is what was measured until then")
    if args.json:
        report = {"machine": machine(), "runs": [asdict(run) for run in runs]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(runs, args.contenders))
    return 0


def run(contender: str, directory: Path, etcd: str, seconds: float) -> Undisturbed:
    """One undisturbed job.

    Args:
        contender: the launcher's name.
        directory: for the job's files; must not exist yet.
        etcd: ``host:port`` of the etcd server.
        seconds: how long it is observed, once it is warm.
    """
    with Job(CONTENDERS[contender], directory, etcd, PLAIN) as job:
        for _ in range(_NODES):
            job.start_node()

        def warm() -> bool:
            workers = job.workers()
            return len(workers) == _NODES and len(job.steps()) >= _WARM_UP_STEPS * _NODES

        job.wait(warm, _START_SECONDS, "its first steps")
        workers = {worker.pid for worker in job.workers()}
        start, before = time.monotonic(), _used(job.nodes, workers)
        end = start + seconds
        job.wait(lambda: time.monotonic() >= end, seconds + 10, "the time to pass")
        elapsed, after = time.monotonic() - start, _used(job.nodes, workers)
        times = step_times(step for step in job.steps() if step.at >= start)
    share = [100 * (b - a) / elapsed / _NODES for a, b in zip(before, after, strict=True)]
    return Undisturbed(
        contender,
        median=1000 * quantile(times, 0.5),
        mean=1000 * sum(times) / len(times),
        p95=1000 * quantile(times, 0.95),
        agent=share[0],
        beside=share[1],
        steps=len(times),
    )


def step_times(steps: Iterable[Step]) -> list[float]:
    """Seconds from each step of a rank to its next one."""
    ordered = sorted(steps, key=lambda step: (step.round, step.rank, step.at))
    return [
        later.at - earlier.at
        for earlier, later in itertools.pairwise(ordered)
        if (earlier.round, earlier.rank) == (later.round, later.rank)
    ]


def table(runs: Sequence[Undisturbed], contenders: Sequence[str]) -> str:
    """The medians over the runs of each contender, and the ratio to the first one."""
    head = f"{'contender':18} {'median ms':>10} {'mean ms':>8} {'p95 ms':>8} {'ratio':>7} "
    lines = [f"{head}{'of means':>8} {'agent %':>8} beside %"]
    first: tuple[float, float] | None = None
    for name in contenders:
        own = [run for run in runs if run.contender == name]
        if not own:
            continue
        median = quantile([run.median for run in own], 0.5)
        mean = quantile([run.mean for run in own], 0.5)
        p95 = quantile([run.p95 for run in own], 0.5)
        first = first or (median, mean)
        agent = quantile([run.agent for run in own], 0.5)
        beside = quantile([run.beside for run in own], 0.5)
        ratio = f"{median / first[0]:>7.3f} {mean / first[1]:>8.3f}"
        rest = f"{agent:>8.2f} {beside:>8.2f}"
        lines.append(f"{name:18} {median:>10.2f} {mean:>8.2f} {p95:>8.2f} {ratio} {rest}")
    return "\n".join(lines)


def _used(nodes: Iterable[Node], workers: set[int]) -> tuple[float, float]:
    """Seconds of processor time used so far by the agents, and by what runs beside the workers."""
    agents = beside = 0.0
    for node in nodes:
        for pid in node.processes():
            if pid == node.agent.pid:
                agents += processes.cpu_seconds(pid)
            elif not _below(pid, workers):
                beside += processes.cpu_seconds(pid)
    return agents, beside


def _below(pid: int, ancestors: set[int]) -> bool:
    while pid > 1:
        if pid in ancestors:
            return True
        pid = processes.parent(pid)
    return False


def _line(run: Undisturbed) -> str:
    text = f"{run.contender}: step {run.median:.2f} ms (mean {run.mean:.2f}, p95 {run.p95:.2f}), "
    return text + f"agent {run.agent:.2f} % of a core, beside it {run.beside:.2f} %"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contender")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each observation")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=list(CONTENDERS),
        # torchrun's plain form trains just as fast, but needs 30 s more to start.
        default=["torchrun-tuned", "elastic-etcd"],
        help="the first one is what the others are compared with",
    )
    parser.add_argument("--json", type=Path, help="file for the whole result")
    return parser.parse_args()


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
