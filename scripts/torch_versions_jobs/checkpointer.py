"""A DDP script with a ``Checkpointer``."""

from __future__ import annotations

import torch.distributed as dist
from diary import SAVE_EVERY, STEPS, Diary
from torch.nn.parallel import DistributedDataParallel
from training import adam, network, train_one

import elastic_runtime as elastic


def main() -> None:
    """Trains from the newest checkpoint on."""
    dist.init_process_group("gloo")
    diary = Diary()
    model = network()
    optim = adam(model)
    parts = {"model": model, "optim": optim}
    ckpt = elastic.Checkpointer(diary.folder / "saved", parts, every=f"{SAVE_EVERY} steps")
    diary.begins(ckpt.resume())
    ddp = DistributedDataParallel(model)
    for step in range(ckpt.steps, STEPS):
        train_one(ddp, optim, step)
        ckpt.step()
        diary.step(step + 1)
    ckpt.save()
    diary.ends(ckpt.steps, model.parameters(), optim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
