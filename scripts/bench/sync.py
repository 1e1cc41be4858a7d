#!/usr/bin/env python3
"""How long it takes to bring a state to a newcomer, beside a bare gloo broadcast of as many bytes.

One rank holds a commit of a model and its Adam, the other ranks are new; all are brought to one
state as ``elastic.run`` does it, digests included. Both are measured alternately, on the same
group, from a barrier to the moment at which the last rank is done.

    scripts/bench/sync.py --megabytes 100 --repeat 10 --json /tmp/sync.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.state_transfer import bring_together
from scripts.bench.measure.contenders import ENVIRONMENT
from scripts.bench.measure.figures import quantile
from scripts.bench.measure.report import machine
from tests.etcd_server import free_port

_WIDTH = 1024


@dataclass(frozen=True)
class Task:
    """What is measured.

    Attributes:
        ranks: one that gives, all others new.
        megabytes: of parameters and Adam's state together (1 MB = 10^6 bytes).
        repeat: how often.
        port: of the store through which the ranks connect.
    """

    ranks: int
    megabytes: float
    repeat: int
    port: int

    @property
    def layers(self) -> int:
        """Linear layers of 1024 by 1024 floats; Adam keeps two more tensors of each."""
        return max(1, round(self.megabytes * 1e6 / (3 * 4 * _WIDTH * (_WIDTH + 1))))


@dataclass(frozen=True)
class Times:
    """Seconds of one repetition, until the last rank was done; and how many bytes were given."""

    sync: float
    broadcast: float
    nbytes: int


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="one gives, the others are new (2)")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the state (100)")
    parser.add_argument("--repeat", type=int, default=10, help="how often it is measured (10)")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    args = parser.parse_args()
    task = Task(args.ranks, args.megabytes, args.repeat, free_port())
    times = measure(task)
    if args.json:
        runs = [asdict(one) for one in times]
        report = {"machine": machine(), "task": asdict(task), "runs": runs}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(task, times))
    return 0


def measure(task: Task) -> list[Times]:
    """Starts the ranks and gives what they have measured."""
    os.environ.update(ENVIRONMENT)
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.SimpleQueue()
    started = [
        spawn.Process(target=_rank, args=(rank, task, answer), daemon=True)
        for rank in range(task.ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a rank ended with code {process.exitcode}")
    times: list[Times] = answer.get()
    return times


def table(task: Task, times: list[Times]) -> str:
    """Medians and 95th percentiles (nearest rank), and the share of the bare broadcast's speed."""
    lines = [
        f"{task.ranks} ranks, {times[0].nbytes / 1e6:.0f} MB",
        f"{'':12} median s   p95 s  MB/s",
    ]
    both = {"in place": [t.sync for t in times], "broadcast": [t.broadcast for t in times]}
    speeds = []
    for name, seconds in both.items():
        median = quantile(seconds, 0.5)
        speeds.append(times[0].nbytes / 1e6 / median)
        lines.append(f"{name:12} {median:>8.3f} {quantile(seconds, 0.95):>7.3f} {speeds[-1]:>5.0f}")
    lines.append(f"share of the broadcast's speed: {100 * speeds[0] / speeds[1]:.0f} %")
    return "\n".join(lines)


def _rank(rank: int, task: Task, answer: multiprocessing.SimpleQueue[list[Times]]) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{task.port}",
        rank=rank,
        world_size=task.ranks,
    )
    group = dist.new_group(backend="gloo")
    wire = group._get_backend(torch.device("cpu"))
    held = _state(task, step=rank == 0)
    nbytes = sum(tensor.nbytes for tensor in held.commit_image().tensors)
    nbytes = int(_most(torch.tensor(nbytes, dtype=torch.float64)))
    flat = torch.zeros(nbytes, dtype=torch.uint8)
    times = []
    for _ in range(task.repeat + 1):
        state = held if rank == 0 else _state(task, step=False)
        if rank:
            state.preallocate()  # as elastic.run does before it asks in
        dist.barrier()
        began = time.monotonic()
        choice = bring_together(state, wire, rank, task.ranks)
        sync = time.monotonic() - began
        assert choice.receivers == tuple(range(1, task.ranks)), choice
        dist.barrier()
        began = time.monotonic()
        dist.broadcast(flat, 0)
        broadcast = time.monotonic() - began
        slowest = _most(torch.tensor([sync, broadcast], dtype=torch.float64))
        times.append(Times(float(slowest[0]), float(slowest[1]), nbytes))
    if rank == 0:
        answer.put(times[1:])  # the first one also pays for what is set up once
    dist.destroy_process_group()


def _most(values: torch.Tensor) -> torch.Tensor:
    """The largest of all ranks."""
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def _state(task: Task, step: bool) -> State:
    """A model with its Adam: with a step committed, or as a newcomer has it."""
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(task.layers)])
    optim = torch.optim.Adam(model.parameters())
    state = State(model=model, optim=optim).keep_in_memory()
    if step:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optim.step()
        state.remember_commit(1)
    return state


if __name__ == "__main__":
    sys.exit(main())
