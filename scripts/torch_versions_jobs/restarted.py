"""A DDP script that saves checkpoints, and is restarted from them."""

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
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(diary.folder / "saved", every=f"{SAVE_EVERY} steps")
    with state.resumed():
        diary.begins(state.step)
        ddp = DistributedDataParallel(model)
        while state.step < STEPS:
            train_one(ddp, optim, state.step)
            state.commit()
            diary.step(state.step)
    diary.ends(state.step, model.parameters(), optim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
