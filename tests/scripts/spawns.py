"""Starts its own processes with `mp.spawn`, inside one worker."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank: int, world_size: int, port: str) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(f"rank {rank} of {world_size} counts {int(ones)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(2, sys.argv[1]), nprocs=2)
    print("spawned and joined")
