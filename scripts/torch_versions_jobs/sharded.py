"""A model that FSDP2 shards, with a ``Checkpointer``: all ranks restart from a checkpoint."""

from __future__ import annotations

import torch.distributed as dist
from diary import SAVE_EVERY, STEPS, Diary
from torch.distributed.fsdp import fully_shard
from training import adam, network, train_one

import elastic_runtime as elastic


def main() -> None:
    """Trains from the newest checkpoint on."""
    dist.init_process_group("gloo")
    diary = Diary()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = adam(model)
    parts = {"model": model, "optim": optim}
    ckpt = elastic.Checkpointer(diary.folder / "saved", parts, every=f"{SAVE_EVERY} steps")
    diary.begins(ckpt.resume())
    for step in range(ckpt.steps, STEPS):
        train_one(model, optim, step)
        ckpt.step()
        diary.step(step + 1)
    ckpt.save()
    weights = [weight.full_tensor() for weight in model.parameters()]
    diary.ends(ckpt.steps, weights, optim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
