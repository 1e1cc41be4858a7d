"""A script without a line of elastic-runtime: it saves with ``torch.save``, and loads that."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from diary import SAVE_EVERY, STEPS, Diary
from torch.nn.parallel import DistributedDataParallel
from training import adam, network, train_one


def main() -> None:
    """Trains from its own last save on."""
    dist.init_process_group("gloo")
    diary = Diary()
    saved = diary.folder / "saved.pt"
    model = network()
    optim = adam(model)
    step = 0
    if saved.exists():
        found = torch.load(saved, weights_only=True)
        model.load_state_dict(found["model"])
        optim.load_state_dict(found["optim"])
        step = found["step"]
    dist.barrier()  # nobody saves while another rank still looks
    ddp = DistributedDataParallel(model)
    diary.begins(step)
    while step < STEPS:
        train_one(ddp, optim, step)
        step += 1
        if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
            unfinished = saved.with_suffix(".new")
            states = {"model": model.state_dict(), "optim": optim.state_dict(), "step": step}
            torch.save(states, unfinished)
            os.replace(unfinished, saved)
        diary.step(step)
    diary.ends(step, model.parameters(), optim)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
