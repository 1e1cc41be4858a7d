"""Misuses: notes what each that one process can show is told, or ends with that of ``--kind``."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from noting import Notes, options
from torch import nn
from torch.distributed import destroy_process_group

import elastic_runtime as elastic
from elastic_runtime.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Callable

ARGS = options()
NOTES = Notes(ARGS.folder)
MODEL = nn.Linear(2, 2)
OPTIM = torch.optim.SGD(MODEL.parameters(), lr=0.1)  # imports for seconds, once for all
STATE = elastic.State(model=MODEL)


class Unsavable:
    """Has a state dict, but one that no other rank could read."""

    def state_dict(self) -> dict[str, object]:
        return {"lock": threading.Lock}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


def commits_outside() -> None:
    STATE.commit()


def holds_what_cannot_be_saved() -> None:
    elastic.State(model=MODEL, hook=print)


def counts_with_an_object() -> None:
    STATE.lock = threading.Lock()


def optimizes_what_is_not_given() -> None:
    elastic.run(lambda world: None, elastic.State(optim=OPTIM))


def connects_before() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        elastic.run(lambda world: None, STATE)
    finally:
        dist.destroy_process_group()


def runs_twice() -> None:
    elastic.run(lambda world: NOTES.say("trained", world), STATE)
    elastic.run(lambda world: None, STATE)


def gives_what_cannot_be_read() -> None:
    elastic.run(lambda world: None, elastic.State(model=MODEL, odd=Unsavable()))


def differs() -> None:
    rank = int(os.environ["RANK"])
    model = nn.Sequential(nn.Linear(2, 2 + rank))
    elastic.run(lambda world: None, elastic.State(net=model))


def returns_early() -> None:
    def train(world: elastic.World) -> None:
        net = nn.parallel.DistributedDataParallel(MODEL)
        while STATE.step < 5 - world.rank:
            net(torch.ones(1, 2)).sum().backward()
            STATE.commit()

    elastic.run(train, STATE)


def _saved(name: str = "saved") -> str:
    return os.path.join(ARGS.folder, name)


def saves_beside() -> None:
    best = elastic.State(model=MODEL)
    best.checkpoints(_saved("best"))

    def train(world: elastic.World) -> None:
        STATE.commit()
        best.save(sync=True)

    elastic.run(train, STATE)


def saves_after() -> None:
    STATE.checkpoints(_saved())
    elastic.run(lambda world: STATE.commit(), STATE)
    STATE.save(sync=True)


def destroys_inside() -> None:
    elastic.run(lambda world: destroy_process_group(), STATE)


def never_commits() -> None:
    def train(world: elastic.World) -> None:
        NOTES.say("trains", world)
        time.sleep(3600.0)

    STATE.checkpoints(_saved())
    elastic.run(train, STATE)


def connects_inside() -> None:
    elastic.run(lambda world: dist.init_process_group("gloo"), STATE)


def loads_before() -> None:
    elastic.load(_saved(), STATE)
    elastic.run(lambda world: None, STATE)


def ends_as_with_torchrun() -> None:
    def train(world: elastic.World) -> None:
        STATE.commit()
        STATE.save()

    STATE.checkpoints(_saved())
    elastic.run(train, STATE)
    NOTES.say("ended", step=STATE.step)
    destroy_process_group()
    dist.destroy_process_group()


def fail_with_words_of_gloo() -> None:
    def train(world: elastic.World) -> None:
        STATE.commit()
        raise RuntimeError("my data server data01:9000: Connection refused")

    elastic.run(train, STATE)


def fail_while_a_reset_is_handled() -> None:
    def train(world: elastic.World) -> None:
        STATE.commit()
        try:
            raise ConnectionResetError(104, "Connection reset by peer")  # one of its own
        except ConnectionResetError:
            _ = {}["batch_size"]

    elastic.run(train, STATE)


ALONE = (
    commits_outside,
    holds_what_cannot_be_saved,
    counts_with_an_object,
    optimizes_what_is_not_given,
    connects_before,
    runs_twice,
    saves_beside,
    saves_after,
    connects_inside,
)


def tell(what: Callable[[], None]) -> None:
    """Notes how it ends, in a process of its own."""
    if os.fork() == 0:
        kind = text = ""
        try:
            what()
        except ElasticError as error:
            kind, text = type(error).__name__, str(error)
        NOTES.say(what.__name__, error=kind, text=text)
        os._exit(0)
    os.wait()


if ARGS.kind:
    globals()[ARGS.kind]()
else:
    for what in ALONE:
        tell(what)
