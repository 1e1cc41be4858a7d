"""On a GPU nothing may use what an aborted collective has left: on each way of regrouping."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch

from elastic_runtime.system import torch_private
from elastic_runtime.worker.groups import round_ranks
from elastic_runtime.worker.recovery.error_classification import WorldChanged, check_groups
from elastic_runtime.worker.state.optimizer_gate import OptimizerGate
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import ROADS, begin_in_place, place, regrouping, serve

PATIENCE = 30.0


class Gpu:
    """A collective is queued, which only an abort releases."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.aborted = threading.Event()

    def in_use(self) -> bool:
        return True

    def collectives(self) -> int | None:
        return 1

    def refuse_recording(self) -> None:
        pass

    def wait(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.waits.set()
        assert self.aborted.wait(PATIENCE)


def interrupted_before_a_step(port: int, road: str) -> list[Any]:
    """An optimizer that waits for its gradients while the round is interrupted."""
    begin_in_place(port)
    ranks = regrouping(road).ranks(place(port))
    ranks.build()
    gpu = Gpu()
    gate = OptimizerGate(partial(check_groups, ranks), gpu)
    known: list[bool] = []

    def abort() -> None:
        known.append(ranks.interrupted.is_set())
        gpu.aborted.set()

    assert round_ranks.torch_private is torch_private
    torch_private.abort_nccl = abort

    def interrupt() -> None:
        gpu.waits.wait(PATIENCE)
        ranks.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    try:
        gate.before_optimizer(optimizer)
        said = "it may step"
    except WorldChanged as change:
        said = str(change)
    thread.join(PATIENCE)
    ranks.take_apart()
    return [known, said]


@pytest.mark.parametrize("road", ROADS)
def test_who_is_released_by_an_abort_knows_that_the_round_is_broken(road: str) -> None:
    server = serve()
    (found,) = values(run_ranks(1, interrupted_before_a_step, server.port, road))
    assert found == [[True], "the round is broken"]
