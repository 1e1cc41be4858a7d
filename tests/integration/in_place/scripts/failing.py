"""Trains and saves to a storage that can fail; ``--kind`` names how.

No file becomes durable while the folder has a file ``broken``. ``overdue``: that may last a second.
``peer`` and ``self``: while the last save is committed, rank 0 kills the other rank, or itself.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING

import torch
from noting import Notes, digest, options
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage, LocalWriter
from elastic_runtime.checkpoint.storage.storage_contract import storage_errors

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.format.manifest import CheckpointId

ARGS = options()
LAST = 12 if ARGS.kind in ("peer", "self") else 0
NOTES = Notes(ARGS.folder)

_durable = LocalWriter.sync
_publish = LocalStorage._publish


def _sync(writer: LocalWriter) -> None:
    if os.path.exists(os.path.join(ARGS.folder, "broken")):
        with storage_errors(f"save to {writer._path}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    _durable(writer)


def _publish_and_kill(storage: LocalStorage, which: CheckpointId, content: bytes) -> None:
    _publish(storage, which, content)
    if which.step == LAST and NOTES.once("killed"):
        victim = os.getpid()
        if ARGS.kind == "peer":
            with open(os.path.join(ARGS.folder, "peer")) as file:
                victim = int(file.read())
        os.kill(victim, signal.SIGKILL)
        while os.path.exists(f"/proc/{victim}/fd/0"):  # a dead one has no files any more
            time.sleep(0.001)


LocalWriter.sync = _sync  # type: ignore[method-assign]
if LAST:
    LocalStorage._publish = _publish_and_kill  # type: ignore[method-assign]


def main() -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(
        os.path.join(ARGS.folder, "saved"),
        every="5 steps",
        keep=2,
        max_age="1s" if ARGS.kind == "overdue" else None,
    )

    def train(world: elastic.World) -> float:
        if world.rank == 1:
            with open(os.path.join(ARGS.folder, "peer"), "w") as file:
                file.write(str(os.getpid()))
        NOTES.say("began", world, step=state.step)
        ddp = DistributedDataParallel(model)
        while not (state.step == LAST if LAST else NOTES.enough()):
            optim.zero_grad()
            ddp(torch.ones(2, 4)).sum().backward()
            time.sleep(ARGS.seconds)
            optim.step()
            state.commit()
            NOTES.say("step", world, step=state.step)
        state.save()
        return digest(model)

    elastic.run(train, state)
    NOTES.say("done", step=state.step)


if __name__ == "__main__":
    main()
