"""A model that FSDP2 shards: all ranks are restarted from a checkpoint."""

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
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(diary.folder / "saved", every=f"{SAVE_EVERY} steps")
    with state.resumed():
        diary.begins(state.step)
        while state.step < STEPS:
            train_one(model, optim, state.step)
            state.commit()
            diary.step(state.step)
    weights = [weight.full_tensor() for weight in model.parameters()]
    diary.ends(state.step, weights, optim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
