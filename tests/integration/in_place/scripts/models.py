"""Steps of several networks at once, each wrapped in another of DDP's ways."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from noting import Notes, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic

FEATURES = 6


class Forked(nn.Module):
    """Uses only one of its two ways in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(FEATURES, 1) for _ in range(2))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        y: torch.Tensor = self.ways[way](x)
        return y


class Fixed(nn.Module):
    """Has buffers that torch does not write to just so, neither do DDP's broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(4).expand(3, -1))
        with torch.inference_mode():
            self.register_buffer("cache", torch.ones(2), persistent=False)


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    normed = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    forked = Forked()
    static = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    models = nn.ModuleList([normed, forked, static, Fixed()])
    optim = torch.optim.AdamW(models.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 5, 0.99)
    state = elastic.State(models=models, optim=optim, schedule=schedule)

    def train(world: elastic.World) -> None:
        group = dist.new_group(list(range(world.size)))
        ddps = (
            DistributedDataParallel(normed, broadcast_buffers=True),
            DistributedDataParallel(forked, find_unused_parameters=True),
            DistributedDataParallel(static, static_graph=True, gradient_as_bucket_view=True),
        )
        while not notes.enough():
            x = torch.randn(5, FEATURES)
            optim.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = ddps[0](x), ddps[1](x, state.step % 2), ddps[2](x)
            sum(y.float().square().mean() for y in out).backward()
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            assert int(total) == world.size
            time.sleep(args.seconds)
            optim.step()
            schedule.step()
            state.commit()
            notes.say("step", world, step=state.step)
        weights = sum(float(p.double().abs().sum()) for p in models.parameters())
        notes.say("ended", world, step=state.step, digest=weights)

    elastic.run(train, state)


if __name__ == "__main__":
    main()
