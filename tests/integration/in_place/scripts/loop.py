"""One loop for both forms: pieces, a warm-up, an average, evaluations, a best value, and a log."""

from __future__ import annotations

import os
import time

import torch
from noting import Notes, options
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

import elastic_runtime as elastic

SAMPLES, BATCH, EPOCHS = 91, 12, 12


class Points(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Their numbers come with them."""

    def __init__(self) -> None:
        self.inputs, self.targets = torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 2)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.targets[index], index


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    data = Points()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 2))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: min(1.0, (step + 1) / 10))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = elastic.DataLoader(data, global_batch_size=BATCH, at_once=3, seed=3, num_workers=1)
    state = elastic.State(
        model=model, optim=optim, schedule=schedule, ema=ema, loader=loader, best=9.0, told=[]
    )
    state.checkpoints(os.path.join(args.folder, "saved"), every="4 steps", keep=2)

    def evaluate() -> None:
        model.eval()
        if state.world.rank == 0:  # the others get what it sets
            with torch.no_grad():
                loss = (elastic.ddp(model)(data.inputs) - data.targets).square().mean().item()
            state.told = [*state.told, [state.step, loss]]
            state.best = min(state.best, loss)

    def log() -> None:
        if state.world.rank == 0:
            notes.say("row", state.world, step=state.step, lr=schedule.get_last_lr()[0])

    state.at("5 steps, epoch, end", evaluate)
    state.at("1 steps", log)

    def train(world: elastic.World) -> None:
        ddp = elastic.ddp(model)
        notes.say("began", world, step=state.step)
        for step in loader.steps(epochs=EPOCHS):
            loss, samples = 0.0, []
            for inputs, targets, numbers in step:
                mean = (ddp(inputs) - targets).square().mean()
                step.backward(mean)
                loss += mean.item() * step.weight / world.size
                samples += numbers.tolist() if step.weight else []
            time.sleep(args.seconds)
            optim.step()
            optim.zero_grad()
            schedule.step()
            ema.update_parameters(model)
            lr = schedule.get_last_lr()[0]
            try:
                state.commit()
            finally:
                if state.step == step.number:  # it counts, whether or not the commit returns
                    held = {"loss": loss, "samples": samples, "lr": lr}
                    notes.say("step", world, step=step.number, **held)

    elastic.run(train, state, in_place=args.kind == "in place")
    notes.say(
        "ended",
        state.world,
        step=state.step,
        told=state.told,
        best=state.best,
        sums=[p.sum().item() for p in (*model.parameters(), *ema.parameters())],
        place=[loader.epoch, loader.cursor],
    )


if __name__ == "__main__":
    main()
