"""Names the store by a URL."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group(
    "gloo",
    init_method=f"tcp://127.0.0.1:{sys.argv[1]}",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} counts {int(ones)}")
dist.destroy_process_group()
