"""Takes its arguments as the tutorials do: two positions and an option with an underscore."""

import argparse
import os

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"rank {rank} of {world} counts {int(ones)}")
    print(f"epochs {args.total_epochs} save {args.save_every} batch {args.batch_size}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
