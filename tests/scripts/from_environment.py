"""The usual way: everything that `init_process_group` needs is in the environment."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} counts {int(ones)}")
dist.destroy_process_group()
