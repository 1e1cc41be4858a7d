#!/usr/bin/env python3
"""What ``commit()`` costs a step of some 20 ms, beside the same training without it.

Two jobs of two processes over gloo take turns, a few steps each: plain DDP, and ``elastic.run``
with a commit after each step. Both make the step of ``scripts/bench/steps.py``, most of which is a
pause in which the caches get cold, as they do in a long step of a model; with ``--compute`` the
processor works for as long. The jobs train for a while before they are timed, as the ranks agree
less and less often (``worker/agreement.py``). What an agent adds, the published step, is a store to
shared memory.

    scripts/bench/commit.py --steps 2000 --json /tmp/commit.json

``--tight`` times nothing but the call, with nothing between two calls: the least that it can cost,
with and without the random generators remembered. ``--gpu`` measures, on one GPU, what whole steps
of a small transformer cost when each optimizer waits for its gradients on the host
(``worker/recovery/optimizer_gate.py``), and when it does not.
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
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime.worker.recovery.optimizer_gate import OptimizerGate
from scripts.bench.measure.figures import quantile
from scripts.bench.measure.report import machine
from scripts.bench.measure.workload import BATCH, STEP_SECONDS, network, train_one
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.queues import SimpleQueue

_WARM_UP = 50
# Steps that a job makes before it is the other one's turn, after one that is not counted: the job
# has to wake up.
_TURN = 25


@dataclass(frozen=True)
class Cost:
    """What commits cost.

    Attributes:
        ranks: how many processes train together.
        generators: whether the State remembers the random generators.
        median, p95: of one call, in microseconds.
    """

    ranks: int
    generators: bool
    median: float
    p95: float


@dataclass(frozen=True)
class StepTimes:
    """The steps of both ranks of one job.

    Attributes:
        commits: whether it trains in place.
        median, p95: of one step, in milliseconds.
        mean: the same.
    """

    commits: bool
    median: float
    p95: float
    mean: float


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="steps of each job, or commits")
    parser.add_argument("--warm-up", type=float, default=12.0, help="seconds before them")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--compute", action="store_true", help="steps that are busy all the time")
    parser.add_argument("--tight", action="store_true", help="nothing but calls of commit")
    parser.add_argument("--gpu", action="store_true", help="what waiting for gradients costs")
    args = parser.parse_args()
    if args.gpu:
        return _on_gpu(args.steps)
    if args.tight:
        costs: Sequence[Cost | StepTimes] = _tight(args.steps)
    else:
        costs = _beside_plain(args.steps, args.warm_up, compute=args.compute)
    if args.json:
        report = {"machine": machine(), "costs": [asdict(cost) for cost in costs]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _beside_plain(steps: int, warm_up: float, *, compute: bool) -> list[StepTimes]:
    """Both jobs in turns."""
    jobs = [_Pair(commits, compute) for commits in (False, True)]
    try:
        start = time.monotonic()
        while time.monotonic() < start + warm_up:
            for job in jobs:
                job.turn()
        turns = [[job.turn() for job in jobs] for _ in range(max(1, steps // _TURN))]
    finally:
        for job in jobs:
            job.end()
    times = []
    for commits, name in ((False, "without"), (True, "with   ")):
        all_of_them = [millis for turn in turns for millis in turn[commits]]
        mean = sum(all_of_them) / len(all_of_them)
        of_job = StepTimes(commits, quantile(all_of_them, 0.5), quantile(all_of_them, 0.95), mean)
        times.append(of_job)
        print(f"{name}  median {of_job.median:.3f} ms  p95 {of_job.p95:.3f} ms")
    for name, share in (("median", 0.5), ("p95   ", 0.95)):
        whole = [quantile([t for turn in turns for t in turn[i]], share) for i in (0, 1)]
        pairs = [quantile(b, share) / quantile(a, share) for a, b in turns]
        print(
            f"ratio of the {name}  {whole[1] / whole[0]:.4f}   "
            f"median of the ratios of two turns {quantile(pairs, 0.5):.4f}"
        )
    return times


class _Pair:
    """Two ranks that make some steps when they are told to."""

    def __init__(self, commits: bool, compute: bool) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self._lines = []
        self._ranks = []
        for rank in range(2):
            here, there = context.Pipe()
            self._lines.append(here)
            arguments = (rank, port, commits, compute, there)
            self._ranks.append(context.Process(target=_rank_in_turns, args=arguments))
            self._ranks[-1].start()

    def turn(self) -> list[float]:
        """Makes a turn; the milliseconds of each step of both ranks."""
        for line in self._lines:
            line.send(_TURN + 1)
        return [millis for line in self._lines for millis in line.recv()[1:]]

    def end(self) -> None:
        """Ends both ranks."""
        for line in self._lines:
            line.send(0)
        for rank in self._ranks:
            rank.join()


def _rank_in_turns(
    rank: int, port: int, commits: bool, compute: bool, line: Connection[list[float], int]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.manual_seed(0)
    model, optim = network()
    batch = torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))
    square = torch.randn(512, 512)

    def turns(state: elastic.State | None) -> None:
        ddp = DistributedDataParallel(model)
        while steps := line.recv():
            if state is not None:  # as if there had been no other job in between
                state._on_commit._agreement.restart_clock()  # type: ignore[union-attr]
            millis = []
            for _ in range(steps):
                began = time.perf_counter()
                train_one(ddp, optim, batch, 0.0 if compute else STEP_SECONDS)
                while compute and time.perf_counter() < began + STEP_SECONDS:
                    torch.mm(square, square)
                if state is not None:
                    state.commit()
                millis.append(1e3 * (time.perf_counter() - began))
            line.send(millis)

    if commits:
        loader = elastic.DataLoader(range(1 << 16), BATCH)
        state = elastic.State(model=model, optim=optim, loader=loader)
        elastic.run(lambda world: turns(state), state)
        return
    torch.distributed.init_process_group("gloo")
    turns(None)
    torch.distributed.destroy_process_group()


def _tight(steps: int) -> list[Cost]:
    """Nothing but commits."""
    costs = []
    for generators in (True, False):
        costs.append(Cost(1, generators, *_alone(generators, steps)))
        costs.append(Cost(2, generators, *_together(generators, steps)))
    for cost in costs:
        name = "alone  " if cost.ranks == 1 else "2 ranks"
        kept = "with generators   " if cost.generators else "without generators"
        print(f"{name}  {kept}  median {cost.median:6.1f} µs  p95 {cost.p95:6.1f} µs")
    return costs


def _on_gpu(steps: int) -> int:
    """Times whole steps, with optimizers that wait for their gradients and without."""
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 1
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 8).cuda()
    optim = torch.optim.AdamW(model.parameters())
    state = elastic.State(model=model, optim=optim)
    state.remember_commit(0)
    state._on_commit = lambda: None
    ddp = DistributedDataParallel(model)
    inputs = torch.randn(8, 128, 512, device="cuda")
    # In turn, so that a clock that slows down falls on both.
    millis: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * (_WARM_UP + steps)):
        waits = bool(number % 2)
        state._gate = OptimizerGate(lambda: None) if waits else _NoOptimizerGate(lambda: None)
        began = time.perf_counter()
        optim.zero_grad()
        ddp(inputs).square().mean().backward()
        optim.step()
        state.commit()
        millis[waits].append(1e3 * (time.perf_counter() - began))
    for waits, name in ((False, "optimizers do not wait"), (True, "optimizers wait       ")):
        taken = millis[waits][_WARM_UP:]
        print(f"{name}  median {quantile(taken, 0.5):7.3f} ms  p95 {quantile(taken, 0.95):7.3f} ms")
    torch.distributed.destroy_process_group()
    return 0


class _NoOptimizerGate(OptimizerGate):
    """The order without a look before the optimizer."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        pass


def _state(generators: bool) -> tuple[nn.Module, torch.optim.Optimizer, elastic.State]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    optim = torch.optim.Adam(model.parameters())
    return model, optim, elastic.State(generators=generators, model=model, optim=optim)


def _train(
    model: nn.Module, optim: torch.optim.Optimizer, state: elastic.State, steps: int
) -> tuple[float, float]:
    """Median and p95 of all commits, in microseconds."""
    inputs = torch.randn(16, 32)
    micros = []
    for _ in range(_WARM_UP + steps):
        optim.zero_grad()
        model(inputs).square().mean().backward()
        optim.step()
        began = time.perf_counter()
        state.commit()
        micros.append(1e6 * (time.perf_counter() - began))
    del micros[:_WARM_UP]
    return quantile(micros, 0.5), quantile(micros, 0.95)


def _alone(generators: bool, steps: int) -> tuple[float, float]:
    model, optim, state = _state(generators)
    state.remember_commit(0)
    state._on_commit = lambda: None
    return _train(model, optim, state, steps)


def _together(generators: bool, steps: int) -> tuple[float, float]:
    """The commits of rank 0 of two."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    port = free_port()
    ranks = [
        context.Process(target=_rank, args=(rank, port, generators, steps, answers))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a rank ended with exit code {process.exitcode}")
    cost: tuple[float, float] = answers.get()
    return cost


def _rank(
    rank: int, port: int, generators: bool, steps: int, answers: SimpleQueue[tuple[float, float]]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    model, optim, state = _state(generators)

    def train(world: elastic.World) -> tuple[float, float]:
        return _train(DistributedDataParallel(model), optim, state, steps)

    cost = elastic.run(train, state)
    if rank == 0:
        answers.put(cost)


if __name__ == "__main__":
    sys.exit(main())
