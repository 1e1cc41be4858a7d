"""Steps under Lightning's Fabric, made anew in each world, with nothing of ours for it."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch
from lightning import Fabric
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.lightning import ElasticEnvironment

sys.path.insert(0, str(Path(__file__).parents[2] / "in_place" / "scripts"))
from noting import Notes, digest, options

warnings.filterwarnings("ignore", module="lightning")
BATCH = 12


def main() -> None:
    args = options()
    notes = Notes(args.folder)
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optim = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(20 * BATCH, 4)
    loader = elastic.DataLoader(data, BATCH, seed=2)
    state = elastic.State(model=model, optim=optim, loader=loader)

    def train(world: elastic.World) -> None:
        fabric = Fabric(
            accelerator="cpu",
            strategy="ddp",
            devices=world.local_size,
            num_nodes=world.nodes,
            precision="bf16-mixed",
            plugins=[ElasticEnvironment()],
        )
        fabric.launch()
        parallel, stepper = fabric.setup(model, optim)
        for step in loader.steps():
            for batch in step:
                if notes.enough():
                    notes.say("ended", world, step=state.step, digest=digest(model))
                    return
                batch = fabric.to_device(batch)
                loss = (parallel(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
                stepper.zero_grad()
                fabric.backward(loss * step.weight)
                fabric.clip_gradients(parallel, stepper, max_norm=1.0)
                time.sleep(args.seconds)
                stepper.step()
                state.commit()
                notes.say("step", world, step=state.step)

    elastic.run(train, state)


if __name__ == "__main__":
    main()
