"""The benchmark's job with accelerate: ``BENCH_ACCELERATE`` says how it outlives a fault.

``plain`` is as people write it: accelerate's own state is saved every ten steps, and loaded at a
restart. ``in-place`` and ``restart`` have the accelerator of elastic-runtime.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from torch import nn
from torch.utils.data import DataLoader
from workload import BATCH, SAVE_EVERY, STEP_SECONDS, Points, StepLog, hold_ballast, network

import elastic_runtime as elastic
from elastic_runtime.accelerate import fresh_accelerator

warnings.filterwarnings("ignore")

SAMPLES = 1 << 16


def step(
    accelerator: Accelerator, model: nn.Module, optim: Any, batch: Any, weight: float = 1.0
) -> None:
    """One step of the benchmark's length."""
    points, labels = batch
    loss = nn.functional.cross_entropy(model(points), labels)
    optim.zero_grad()
    accelerator.backward(loss * weight)
    optim.step()
    time.sleep(STEP_SECONDS)


def train_plain(args: argparse.Namespace) -> None:
    """A user's own script."""
    accelerator = Accelerator(cpu=True)
    model, optim = network()
    loader = DataLoader(Points(SAMPLES), batch_size=BATCH, shuffle=True, num_workers=2)
    model, optim, loader = accelerator.prepare(model, optim, loader)
    saved = Path(args.checkpoint)
    done = int(max((p.name for p in saved.glob("[0-9]*")), default="0", key=int))
    if done:
        accelerator.load_state(str(saved / str(done)))
    log = StepLog(args.notes, first_step=done)
    batches = skip_first_batches(loader, done % len(loader))
    while done < args.steps:
        for batch in batches:
            step(accelerator, model, optim, batch)
            log.completed(done)
            done += 1
            if done % SAVE_EVERY == 0:
                accelerator.save_state(str(saved / f".{done}"))
                if accelerator.is_main_process:
                    (saved / f".{done}").rename(saved / str(done))
                accelerator.wait_for_everyone()
            if done == args.steps:
                break
        batches = loader
    accelerator.end_training()


def train_elastic(args: argparse.Namespace, *, in_place: bool) -> None:
    """The same with our accelerator, by ``elastic.run``."""
    accelerator = fresh_accelerator(in_place=in_place, cpu=True)
    model, optim = network()
    loader = elastic.DataLoader(Points(SAMPLES), 2 * BATCH, num_workers=2)
    model, optim = accelerator.prepare(model, optim)
    state = elastic.State(model=model, optim=optim, loader=loader)
    if not in_place:
        state.checkpoints(args.checkpoint, every=f"{SAVE_EVERY} steps", keep=2)

    def train(world: elastic.World) -> None:
        log = StepLog(args.notes, first_step=state.step)
        for one in loader.steps(steps=args.steps):
            for batch in one:
                step(accelerator, model, optim, batch, one.weight)
            number, at = state.step, time.monotonic_ns()
            try:
                state.commit()
            finally:
                log.completed(number, at)

    elastic.run(train, state, in_place=in_place)
    accelerator.end_training()


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()
    torch.manual_seed(0)
    kind = os.environ.get("BENCH_ACCELERATE", "")
    if kind in ("in-place", "restart"):
        train_elastic(args, in_place=kind == "in-place")
    else:
        train_plain(args)


if __name__ == "__main__":
    main()
