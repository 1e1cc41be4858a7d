"""What the scripts of these tests share: they note what they do, and end together when told to."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

import elastic_runtime as elastic


def options() -> argparse.Namespace:
    """The command line, the same for all scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=".")
    parser.add_argument("--kind", default="")
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a step")
    parser.add_argument("--steps", type=int, default=0, help="0: until somebody says enough")
    return parser.parse_args()


class Notes:
    """One line of JSON for all that happens, by all workers in one file.

    Args:
        folder: also holds ``enough``, which ends the job when it is there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file = os.open(
            os.path.join(folder, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )

    def say(self, what: str, world: elastic.World | None = None, **fields: Any) -> None:
        """Notes something."""
        line: dict[str, Any] = {"at": time.monotonic(), "what": what, "pid": os.getpid(), **fields}
        line["node"] = os.environ.get("ELASTIC_NODE_NAME", "")
        if world is not None:
            line |= {"round": world.round, "rank": world.rank, "size": world.size}
            line["local_rank"] = world.local_rank
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def has(self, name: str) -> bool:
        """Whether the test, or another worker, has made this file."""
        return os.path.exists(os.path.join(self._folder, name))

    def once(self, name: str) -> bool:
        """Whether this is the first worker ever that asks."""
        try:
            os.close(os.open(os.path.join(self._folder, name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def obey(self, world: elastic.World, step: int) -> None:
        """Does what the test asks of this worker: ``sleep-PID`` or ``busy-PID``, with seconds."""
        for order in ("sleep", "busy"):
            path = os.path.join(self._folder, f"{order}-{os.getpid()}")
            if os.path.exists(path):
                with open(path) as file:
                    seconds = float(file.read())
                os.unlink(path)
                self.say(order, world, step=step)
                with elastic.busy("evaluation") if order == "busy" else nullcontext():
                    time.sleep(seconds)

    def enough(self) -> bool:
        """Whether all ranks are to end now; a collective."""
        flag = torch.tensor(float(self.has("enough")))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


def digest(module: torch.nn.Module) -> float:
    """A number that is the same for the same parameters and buffers."""
    return sum(float(t.double().abs().sum()) for t in module.state_dict().values())
