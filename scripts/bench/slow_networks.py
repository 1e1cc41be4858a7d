#!/usr/bin/env python3
"""What outer steps and faults cost where ranks train alone between syncs, beside torchft.

Two processes train the same model with DiLoCo, on one machine. Each trial is one job of a
contender; those of both take turns.

- ``outer``: nobody is killed. How much longer an inner step takes in which an outer one is made.
- ``between``: one process is killed at some moment between two syncs, and replaced. The longest
  time for which the other one makes no inner step, until the replacement has made an outer step
  with it; and its inner steps that do not count because of that.
- ``within``: the same, killed as soon as it says that it begins an outer step.

torchft is no dependency of this project: ``--torchft`` names a Python that has it, with the same
torch. It starts no processes again, so that this benchmark does, at once. Its lighthouse has a
heartbeat timeout of ``--heartbeat-timeout`` seconds (its own default is 5)::

    python3 -m venv /tmp/ft
    echo $PWD/.venv/lib/python3.11/site-packages > /tmp/ft/lib/python3.11/site-packages/z.pth
    /tmp/ft/bin/pip install --no-deps torchft-nightly  # else pip takes another torch
    /tmp/ft/bin/pip install opentelemetry-exporter-otlp-proto-http
    scripts/bench/slow_networks.py --torchft /tmp/ft/bin/python --repeat 5
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.measure import diloco_notes
from scripts.bench.measure.diloco_notes import BEGIN, OUTER, Cost
from scripts.bench.measure.report import machine

if TYPE_CHECKING:
    from collections.abc import Callable

ELASTIC, TORCHFT = "elastic", "torchft"
WHAT = ("outer", "between", "within")
_MEASURE = Path(__file__).with_name("measure")
_PATIENCE = 120.0
_LIGHTHOUSE = """
import signal, sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100,
                          quorum_tick_ms=100, heartbeat_timeout_ms=int(sys.argv[1]))
print(server.address(), flush=True)
signal.pause()
"""


class Found(NamedTuple):
    """The figures of one trial: seconds of outer steps, and costs of faults."""

    outer: list[float]
    costs: list[Cost]


class Job:
    """Two processes that train, until the end of ``with``."""

    def __init__(self, contender: str, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self._args, self._contender = folder, args, contender
        self._log = (folder / "log").open("ab")
        self._running: list[subprocess.Popen[bytes]] = []
        self._environ = {
            **os.environ, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"
        }  # fmt: skip
        self._options = (
            f"--notes={folder}", f"--sync-every={args.sync_every}",
            f"--width={args.width}", f"--pause={args.pause}",
        )  # fmt: skip
        if contender == ELASTIC:
            run = (sys.executable, "-m", "elastic_runtime", "--nproc-per-node", "2")
            self._start(*run, str(_MEASURE / "train_diloco.py"), *self._options)
        else:
            self._start_lighthouse()
            for number in range(2):
                self._start_replica(number)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env=self._environ, stdout=self._log, stderr=subprocess.STDOUT
        )
        self._running.append(process)
        return process

    def _start_lighthouse(self) -> None:
        limit = str(round(1000 * self._args.heartbeat_timeout))
        process = subprocess.Popen(
            (self._args.torchft, "-c", _LIGHTHOUSE, limit),
            env=self._environ, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._running.append(process)
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        port = re.search(r":(\d+)\s*$", said)
        if port is None:
            sys.exit(f"torchft's lighthouse did not start: see {self.folder / 'log'}")
        self._environ |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port[1]}", "RUST_LOG": "error"}

    def _start_replica(self, number: int) -> None:
        script = str(_MEASURE / "train_torchft.py")
        self._start(self._args.torchft, script, *self._options, f"--name=replica{number}")

    def kill(self, pid: int) -> None:
        """Kills one of the processes that train; it is replaced at once."""
        os.kill(pid, signal.SIGKILL)
        if self._contender == TORCHFT:
            number = next(n for n, one in enumerate(self._running) if one.pid == pid)
            self._running[number].wait()
            self._start_replica(number + len(self._running))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT if self._contender == ELASTIC else signal.SIGKILL)
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self._log.close()

    def together(self, since: int) -> list[int]:
        """Two processes that have both made outer steps since a moment; waits for them.

        Args:
            since: in nanoseconds.
        """

        def look() -> list[int]:
            notes = diloco_notes.read(self.folder)
            made = {
                pid: [one for one in lines if one.what == OUTER and one.at > since]
                for pid, lines in notes.items()
            }
            late = [pid for pid, lines in made.items() if len(lines) >= 2]
            return late if len(late) >= 2 else []

        return wait_for(look, "an outer step of two processes", self.folder)


def wait_for(look: Callable[[], list[int]], what: str, folder: Path) -> list[int]:
    """Waits until a look finds something, and returns it."""
    end = time.monotonic() + _PATIENCE
    while not (found := look()):
        if time.monotonic() > end:
            sys.exit(f"there was never {what}: see {folder}")
        time.sleep(0.02)
    return found


def trial(contender: str, what: str, args: argparse.Namespace, chance: random.Random) -> Found:
    """One job: its outer steps, or its faults."""
    folder = Path(tempfile.mkdtemp(prefix=f"slow-{contender}-{what}-"))
    with Job(contender, folder, args) as job:
        pair = job.together(0)
        if what == "outer":
            time.sleep(args.seconds)
            notes = diloco_notes.read(folder)
            seconds = [s for pid in pair for s in diloco_notes.outer_seconds(notes[pid])[2:]]
            return Found(seconds, [])
        costs = []
        for _ in range(args.faults):
            costs.append(fault(job, what, pair, chance, args))
            pair = job.together(time.monotonic_ns())
        return Found([], costs)


def fault(
    job: Job, what: str, pair: list[int], chance: random.Random, args: argparse.Namespace
) -> Cost:
    """Kills one of a pair, and finds out what that has cost the other one."""
    victim, survivor = chance.sample(pair, 2)
    if what == "within":
        follow(job.folder / f"{victim}.notes", BEGIN, job.folder)
    else:
        follow(job.folder / f"{victim}.notes", OUTER, job.folder)
        time.sleep(chance.uniform(0.05, 0.9) * args.sync_every * args.pause)
    killed = time.monotonic_ns()
    job.kill(victim)
    job.together(killed)
    time.sleep(0.5)
    notes = diloco_notes.read(job.folder)
    return diloco_notes.cost(notes[survivor], killed, time.monotonic_ns())


def follow(path: Path, what: str, folder: Path) -> None:
    """Waits until a process notes something of this kind."""
    with path.open() as lines:
        lines.seek(0, os.SEEK_END)
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if f" {what} " in lines.readline():
                return
            time.sleep(0.0005)
    sys.exit(f"{path} never said {what}: see {folder}")


def table(found: dict[tuple[str, str], Found], args: argparse.Namespace) -> str:
    """The medians, and the largest values."""
    lines = [f"{'':9} {'':8}  {'number':>6}  {'median s':>8}  {'longest s':>9}  steps given up"]
    for (what, contender), figures in found.items():
        times = figures.outer or [cost.stall for cost in figures.costs]
        line = f"{what:9} {contender:8}  {len(times):>6}  {statistics.median(times):>8.3f}  "
        line += f"{max(times):>9.3f}"
        if figures.costs:
            given = [cost.given_up for cost in figures.costs]
            line += f"  {sum(1 for one in given if one)} times {max(given)} of {args.sync_every}"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torchft", help="a Python that has torchft; without it only ours is run")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT)
    parser.add_argument("--repeat", type=int, default=2, help="jobs of each kind")
    parser.add_argument("--faults", type=int, default=5, help="of each job")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a job without faults")
    parser.add_argument("--sync-every", type=int, default=50)
    parser.add_argument("--width", type=int, default=512, help="of the model's layers")
    parser.add_argument("--pause", type=float, default=0.02, help="in each inner step, seconds")
    parser.add_argument("--heartbeat-timeout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    contenders = (ELASTIC, TORCHFT) if args.torchft else (ELASTIC,)
    found: dict[tuple[str, str], Found] = {}
    for what in args.what:
        for _ in range(args.repeat):
            for contender in contenders:
                figures = trial(contender, what, args, chance)
                all_of = found.setdefault((what, contender), Found([], []))
                all_of.outer.extend(figures.outer)
                all_of.costs.extend(figures.costs)
                print(what, contender, [f"{c.stall:.3f}/{c.given_up}" for c in figures.costs],
                      flush=True)  # fmt: skip
    print(machine())
    print(f"{args}\n{table(found, args)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
