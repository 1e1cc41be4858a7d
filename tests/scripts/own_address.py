"""Chooses the address of the store itself, and passes rank and world size."""

import os
import sys

import torch
import torch.distributed as dist


def setup(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} counts {int(ones)}")
dist.destroy_process_group()
