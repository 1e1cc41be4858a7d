"""A loop of one's own with accelerate, as users write it; ``--kind`` names what is special."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate import fresh_accelerator
from elastic_runtime.worker.world import World

sys.path.insert(0, str(Path(__file__).parents[2] / "in_place" / "scripts"))
sys.path.insert(1, str(Path(__file__).parents[2] / "trainers" / "scripts"))
from noting import Notes, options
from points import EPOCHS, FEATURES, Points

BATCH, MICRO_BATCH = 10, 4
EVALUATED = 31


class Learning:
    """What is trained, and how."""

    def __init__(self, args: Any, notes: Notes) -> None:
        self.args, self.notes = args, notes
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
        optim = torch.optim.AdamW(net.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optim, T_max=EPOCHS * 21)
        data = Points()
        accumulated = args.kind == "accumulated"
        batch, micro = (12, MICRO_BATCH) if accumulated else (BATCH, None)
        self.sampler = elastic.ElasticBatchSampler(data, batch, seed=7, micro_batch_size=micro)
        loader = elastic.loader(data, self.sampler, num_workers=2)
        held = torch.utils.data.Subset(data, range(EVALUATED))
        self.accelerator = fresh_accelerator(
            in_place=args.kind != "restarted",
            mixed_precision="bf16" if args.kind == "bf16" else "no",
        )
        prepared = self.accelerator.prepare(
            net, optim, schedule, loader, DataLoader(held, batch_size=4)
        )
        self.model, self.optim, self.schedule, self.loader, self.held = prepared
        self.parts = {
            "model": self.model,
            "optim": self.optim,
            "schedule": self.schedule,
            "sampler": self.sampler,
        }

    def step(self, world: World, inputs: Any, targets: Any, number: int) -> None:
        """One micro-batch, and with the last one of a step the optimizer's part of it."""
        accelerator = self.accelerator
        with accelerator.accumulate(self.model):
            loss = nn.functional.mse_loss(self.model(inputs)[:, 0], targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                if not self.notes.has("enough"):
                    time.sleep(self.args.seconds)
            self.optim.step()
            self.schedule.step()
            self.optim.zero_grad()
        if accelerator.sync_gradients:
            self._may_die(world, number)

    def _may_die(self, world: World, number: int) -> None:
        if self.notes.has("die-in-hook") and len(self.sampler) == 1 and world.size > 1:
            if world.rank == 1 and self.notes.once("died"):
                self.notes.say("died", world, step=number)
                os.kill(os.getpid(), signal.SIGKILL)
            self.accelerator.wait_for_everyone()

    def evaluate(self, world: World, number: int) -> float:
        """The error over the held samples, each of which counts once."""
        self.model.eval()
        found, seen = [], []
        with torch.no_grad():
            for inputs, targets, index in self.held:
                if self.notes.has("slow-validation"):
                    self.notes.say("validating", world, step=number)
                    time.sleep(0.3)
                errors = (self.model(inputs)[:, 0] - targets) ** 2
                found.append(self.accelerator.gather_for_metrics(errors))
                seen.append(self.accelerator.gather_for_metrics(index))
        self.model.train()
        indices = torch.cat(seen).tolist()
        assert sorted(indices) == list(range(EVALUATED)), indices
        return float(torch.cat(found).mean())

    def weights(self) -> dict[str, Any]:
        """Of the model itself."""
        model = self.accelerator.unwrap_model(self.model)
        return {name: value.tolist() for name, value in model.state_dict().items()}


def train_in_place(learning: Learning) -> None:
    """In one world after the other."""
    notes, sampler = learning.notes, learning.sampler
    state = elastic.State(**learning.parts)
    state.evaluated = 0
    state.error = 0.0

    def commit(world: World, indices: list[int]) -> None:
        step, epoch = state.step, sampler.epoch
        try:
            state.commit()
        finally:
            if state.step > step:
                notes.say("step", world, step=step + 1, epoch=epoch, indices=indices)

    def train(world: World) -> World:
        accelerator = fresh_accelerator()
        assert (accelerator.num_processes, accelerator.process_index) == (world.size, world.rank)
        while True:
            if state.evaluated < sampler.epoch:
                notes.say("epoch", world, step=state.step, epoch=sampler.epoch - 1)
                with elastic.busy("evaluation"):
                    state.error = learning.evaluate(world, state.step)
                state.evaluated = sampler.epoch
                notes.say("validated", world, step=state.step)
            if sampler.epoch == EPOCHS:
                return world
            indices: list[int] = []
            for inputs, targets, index in learning.loader:
                indices += index.tolist()
                together = accelerator.gather_for_metrics(index)
                assert len(together) == learning.loader.samples
                # Of other ranks' samples some may come twice.
                assert {*accelerator.gather(index).tolist()} == {*together.tolist()}
                learning.step(world, inputs, targets, state.step + 1)
                if accelerator.sync_gradients:
                    commit(world, indices)
                    indices = []

    world = elastic.run(train, state)
    end(learning, world, state.step, state.error)


def train_from_checkpoints(learning: Learning) -> None:
    """As long as all are there; then all workers start again."""
    notes, sampler = learning.notes, learning.sampler
    world = World.of_environment(os.environ)
    world = replace(world, round=int(os.environ.get("ELASTIC_ROUND") or 0))
    ckpt = elastic.Checkpointer("saved", learning.parts, every="10 steps")
    ckpt.resume()
    while sampler.epoch < EPOCHS:
        for inputs, targets, index in learning.loader:
            learning.step(world, inputs, targets, ckpt.steps + 1)
            epoch = sampler.epoch
            ckpt.step()
            notes.say("step", world, step=ckpt.steps, epoch=epoch, indices=index.tolist())
    ckpt.save()
    ckpt.close()
    end(learning, world, ckpt.steps, learning.evaluate(world, ckpt.steps))
    learning.accelerator.end_training()


def end(learning: Learning, world: World, step: int, error: float) -> None:
    """Notes what has become of it."""
    facts = {"digest": 0, "version": accelerate.__version__, "error": error}
    learning.notes.say("ended", world, step=step, weights=learning.weights(), **facts)


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    notes.say("scheduled", total=0)
    learning = Learning(args, notes)
    if args.kind == "restarted":
        train_from_checkpoints(learning)
    else:
        train_in_place(learning)


if __name__ == "__main__":
    main()
