"""A loop of one's own with accelerate, as users write it; ``--kind`` names what is special."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader

import elastic_runtime as elastic
from elastic_runtime.accelerate import fresh_accelerator

sys.path.insert(0, str(Path(__file__).parents[2] / "in_place" / "scripts"))
sys.path.insert(1, str(Path(__file__).parents[2] / "trainers" / "scripts"))
from noting import Notes, options
from points import EPOCHS, FEATURES, Points

BATCH, AT_ONCE = 10, 2
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
        batch, at_once = (12, AT_ONCE) if accumulated else (BATCH, None)
        self.loader = elastic.DataLoader(data, batch, at_once=at_once, seed=7, num_workers=2)
        held = torch.utils.data.Subset(data, range(EVALUATED))
        self.accelerator = fresh_accelerator(
            in_place=args.kind != "restarted",
            mixed_precision="bf16" if args.kind == "bf16" else "no",
        )
        prepared = self.accelerator.prepare(net, optim, schedule, DataLoader(held, batch_size=4))
        self.model, self.optim, self.schedule, self.held = prepared
        self.state = elastic.State(
            model=self.model,
            optim=self.optim,
            schedule=self.schedule,
            loader=self.loader,
            error=0.0,
        )
        self.state.checkpoints("saved", every="10 steps")
        if args.kind != "restarted":
            self.state.at("epoch", self.end_epoch)

    def train(self, world: elastic.World) -> elastic.World:
        """Trains to the end, in this world."""
        accelerator = fresh_accelerator(in_place=self.args.kind != "restarted")
        assert (accelerator.num_processes, accelerator.process_index) == (world.size, world.rank)
        for step in self.loader.steps(epochs=EPOCHS):
            indices: list[int] = []
            for inputs, targets, index in step:
                indices += index.tolist()
                # Of other ranks' samples some may come twice.
                assert {*index.tolist()} <= {*accelerator.gather(index).tolist()}
                loss = nn.functional.mse_loss(self.model(inputs)[:, 0], targets)
                accelerator.backward(loss * step.weight)
            accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            if not self.notes.has("enough"):
                time.sleep(self.args.seconds)
            self.optim.step()
            self.schedule.step()
            self.optim.zero_grad()
            self._may_die(world, step)
            try:
                self.state.commit()
            finally:
                if self.state.step == step.number:
                    self.notes.say(
                        "step", world, step=step.number, epoch=step.epoch, indices=indices
                    )
        return world

    def end_epoch(self) -> None:
        """What follows the last step of an epoch."""
        state, world = self.state, self.state.world
        self.notes.say("epoch", world, step=state.step, epoch=self.loader.epoch - 1)
        state.error = self.evaluate(world, state.step)
        self.notes.say("validated", world, step=state.step)

    def _may_die(self, world: elastic.World, step: Any) -> None:
        if self.args.kind == "usual" and world.size > 1:
            dies = self.notes.has("die-in-hook") and step.last_of_epoch
            if dies and world.rank == 1 and self.notes.once("died"):
                self.notes.say("died", world, step=step.number)
                os.kill(os.getpid(), signal.SIGKILL)
            self.accelerator.wait_for_everyone()

    def evaluate(self, world: elastic.World, number: int) -> float:
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
        indices = torch.cat(seen).tolist()
        assert sorted(indices) == list(range(EVALUATED)), indices
        return float(torch.cat(found).mean())

    def weights(self) -> dict[str, Any]:
        """Of the model itself."""
        model = self.accelerator.unwrap_model(self.model)
        return {name: value.tolist() for name, value in model.state_dict().items()}


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    notes.say("scheduled", total=0)
    learning = Learning(args, notes)
    state = learning.state
    in_place = args.kind != "restarted"
    if not in_place:
        state.at("end", lambda: setattr(state, "error", learning.evaluate(state.world, state.step)))
    world = elastic.run(learning.train, state, in_place=in_place)
    facts = {"digest": 0, "version": accelerate.__version__, "error": state.error}
    notes.say("ended", world, step=state.step, weights=learning.weights(), **facts)
    learning.accelerator.end_training()


if __name__ == "__main__":
    main()
