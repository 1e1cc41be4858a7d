"""No optimizer runs on gradients of an aborted collective and is committed; and with a scaler."""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private
from elastic_runtime.training.state import State
from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.recovery.optimizer_gate import OptimizerGate
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from tests.etcd_server import free_port
from tests.queued_device import QueuedDevice, QueuedSGD
from tests.unit.parts.small_job import begun, copy_of


class Rank:
    """One rank that trains on a stand-in for a GPU; its peer may die at any point."""

    def __init__(self, *, shadow: bool = False, optimizers: int = 1) -> None:
        self.device = QueuedDevice()
        self.device.when_blocked = self.device.peer_comes
        self.interrupted = False
        models = [nn.Linear(1, 1, bias=False) for _ in range(optimizers)]
        self.weights = [model.weight for model in models]
        self.optims = [QueuedSGD([weight], self.device) for weight in self.weights]
        named = {f"model{n}": model for n, model in enumerate(models)}
        named |= {f"optim{n}": optim for n, optim in enumerate(self.optims)}
        self.state = State(shadow=shadow, **named)
        self.state._gate = OptimizerGate(self.check, self.device)
        for weight in self.weights:
            weight.data.fill_(10.0)
            weight.grad = torch.zeros_like(weight)
        begun(self.state)

    def check(self) -> None:
        if self.interrupted:
            raise WorldChanged("the round is broken")

    def interrupt(self) -> None:
        """What the agent's thread does: the word first, then the abort."""
        self.interrupted = True
        self.device.abort()

    def backward(self, weight: nn.Parameter, *, replayed: bool = False) -> None:
        """With a collective, which a CUDA graph may replay."""
        grad = weight.grad
        assert grad is not None
        self.device.kernel(lambda: grad.fill_(0.5))
        (self.device.replay_reduce if replayed else self.device.all_reduce)(grad, whole=1.0)

    def values(self) -> list[float]:
        self.device.wait(None)  # whatever was queued has run by the time that others ask
        return [weight.item() for weight in self.weights]


def _step(rank: Rank, *, dies: int, separate: bool = False) -> None:
    """One step with one or two optimizers; before the action ``dies`` the peer is gone."""
    if separate:
        pairs = list(zip(rank.weights, rank.optims, strict=True))
        actions = [a for w, o in pairs for a in (lambda w=w: rank.backward(w), o.step)]
    else:
        actions = [lambda: [rank.backward(weight) for weight in rank.weights]]
        actions += [optim.step for optim in rank.optims]
    actions.append(rank.state.commit)
    for number, action in enumerate(actions):
        if number == dies:
            rank.interrupt()
        action()
    if dies == len(actions):
        rank.interrupt()


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("dies", range(5))
def test_whenever_the_abort_comes_no_garbage_is_committed(
    optimizers: int, shadow: bool, dies: int
) -> None:
    rank = Rank(shadow=shadow, optimizers=optimizers)
    _step(rank, dies=9)  # one step that is whole
    assert rank.values() == [9.0] * optimizers
    with suppress(WorldChanged):
        _step(rank, dies=dies)
    values = rank.values()
    rank.state.roll_back()
    assert rank.values() == [10.0 - rank.state.step] * optimizers, values


@pytest.mark.parametrize("replayed", [False, True])
def test_the_abort_comes_while_the_host_waits_for_the_gradients(replayed: bool) -> None:
    """Also for what a CUDA graph replays, although nobody counts it."""
    rank = Rank()
    _step(rank, dies=9)  # the one in which the collective is recorded, and counted
    rank.device.when_blocked = rank.interrupt  # nobody comes: the agent ends it
    rank.backward(rank.weights[0], replayed=replayed)
    with pytest.raises(WorldChanged):
        rank.optims[0].step()
    assert rank.state.rank_status().condition is MemoryCondition.CLEAN
    assert rank.values() == [9.0]


def test_without_a_look_between_the_two_the_garbage_counts() -> None:
    """What the gate is for: the order that there was."""
    rank = Rank()
    rank.device.when_blocked = rank.interrupt
    rank.backward(rank.weights[0])
    rank.optims[0].step.__wrapped__(rank.optims[0])  # type: ignore[attr-defined]
    rank.device.wait(None)
    rank.state._advance()
    assert rank.state.rank_status().condition is MemoryCondition.CLEAN
    assert rank.values() != [9.0]


@pytest.mark.parametrize("optimizers", [1, 2])
def test_an_abort_after_the_look_finds_the_queue_empty(optimizers: int) -> None:
    """A second optimizer without a collective finishes the step."""
    rank = Rank(optimizers=optimizers)
    for weight in rank.weights:
        rank.backward(weight)
    rank.optims[0].step()
    rank.interrupt()
    for optim in rank.optims[1:]:
        optim.step()
    rank.state.commit()  # counts: what it has computed is right
    assert rank.values() == [9.0] * optimizers


def test_an_optimizer_that_comes_again_begins_another_step() -> None:
    """Several steps may be one commit; what the second one replays is waited for as well."""
    rank = Rank()
    _step(rank, dies=9)
    rank.optims[0].step()
    rank.device.when_blocked = rank.interrupt
    rank.backward(rank.weights[0], replayed=True)
    with pytest.raises(WorldChanged):
        rank.optims[0].step()


def test_a_commit_before_which_no_optimizer_waited_looks_itself() -> None:
    """With a shadow optimizers do not wait, and a graph's collectives are not counted."""
    device, broken = QueuedDevice(), []

    def check() -> None:
        if broken:
            raise WorldChanged("a peer is lost")

    gate = OptimizerGate(check, device)
    tensor = torch.zeros(1)
    device.when_blocked = device.peer_comes
    device.all_reduce(tensor, 1.0)
    gate.before_commit()
    assert gate.certain
    device.when_blocked = lambda: broken.append(True) or setattr(device, "aborted", True)
    device.replay_reduce(tensor, 1.0)
    with pytest.raises(WorldChanged):
        gate.before_commit()


def test_an_optimizer_is_not_recorded_though_all_collectives_have_succeeded() -> None:
    rank = Rank()
    _step(rank, dies=9)
    rank.optims[0].step()  # a warm-up on the gradients that are there
    rank.device.recording = True
    with pytest.raises(UsageError, match="recorded"):
        rank.optims[0].step()


def test_a_collective_between_two_optimizers_is_looked_at() -> None:
    rank = Rank(optimizers=2)
    with pytest.raises(WorldChanged):
        _step(rank, dies=2, separate=True)
    assert rank.state.rank_status().condition is MemoryCondition.DIRTY


def test_a_collective_after_the_optimizer_must_end_well_before_the_step_counts() -> None:
    rank = Rank()
    rank.backward(rank.weights[0])
    rank.optims[0].step()
    rank.device.all_reduce(torch.zeros(1), whole=3.0)
    rank.device.when_blocked = rank.interrupt
    with pytest.raises(WorldChanged):
        rank.state.commit()
    assert rank.state.step == 0


def test_nothing_is_asked_of_a_device_that_is_not_in_use() -> None:
    class Unused(QueuedDevice):
        def in_use(self) -> bool:
            return False

        def collectives(self) -> int | None:
            raise AssertionError

    rank = Rank()
    rank.state._gate = OptimizerGate(rank.check, Unused())
    rank.optims[0].step()
    rank.interrupt()
    rank.state.commit()


def test_where_collectives_are_not_counted_each_optimizer_looks() -> None:
    class Silent(QueuedDevice):
        def collectives(self) -> int | None:
            return None

    rank = Rank(optimizers=2)
    rank.device = Silent()
    rank.state._gate = OptimizerGate(rank.check, rank.device)
    rank.optims[0].step()
    rank.interrupt()
    with pytest.raises(WorldChanged):
        rank.optims[1].step()


# A gradient scaler in a step that is broken off: the step that is made again is made once


class Own:
    """A script's own object around a scaler."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        self.state_dict = scaler.state_dict
        self.load_state_dict = scaler.load_state_dict


class ScaledRank:
    """Each step adds one to the weight; a fault may come between any two of its lines."""

    def __init__(
        self, *, shadow: bool = False, fused: bool = False, enabled: bool = True, own: bool = False
    ) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.model.weight.data.zero_()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=1.0, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler = Own(self.scaler) if own else self.scaler
        self.state = State(shadow=shadow, model=self.model, optim=self.optim, scaler=scaler)
        begun(self.state)
        self.explicit = False
        self.step()
        self.step()

    def step(self, *, breaks: str = "") -> None:
        def reach(place: str) -> None:
            if place == breaks:
                raise WorldChanged

        self.optim.zero_grad()
        self.scaler.scale(-self.model(torch.ones(1, 1)).sum()).backward()
        if self.explicit:
            self.scaler.unscale_(self.optim)
            reach("unscaled")
        self.state._gate = OptimizerGate(lambda: reach("gate"), QueuedDevice())
        self.scaler.step(self.optim)
        reach("stepped")
        self.scaler.update()
        self.state.commit()

    def break_off(self, where: str) -> MemoryCondition:
        self.explicit = where == "unscaled"
        with pytest.raises(WorldChanged):
            self.step(breaks=where)
        self.state._leave()
        return self.state.rank_status().condition

    def check(self, steps: int) -> None:
        """That it makes one step more, and that all of them were applied once."""
        self.step()
        assert self.state.step == steps
        assert self.model.weight.item() == steps
        assert self.scaler.get_scale() == (65536.0 if self.scaler.is_enabled() else 1.0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("where", "enabled"), [("gate", True), ("unscaled", True), ("gate", False)]
)
def test_a_scaler_is_rolled_back_as_well(where: str, enabled: bool, fused: bool, own: bool) -> None:
    rank = ScaledRank(fused=fused, own=own, enabled=enabled)
    for _ in range(2):
        assert rank.break_off(where) is MemoryCondition.CLEAN
        rank.state.roll_back()
    rank.check(3)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("where", ["gate", "unscaled", "stepped"])
def test_a_shadow_rolls_a_scaler_back_from_anywhere(where: str, fused: bool) -> None:
    rank = ScaledRank(shadow=True, fused=fused)
    if where == "gate":  # with a shadow nothing is held back
        rank.optim.register_step_pre_hook(Mock(side_effect=[WorldChanged(), None]))
    assert rank.break_off(where) is MemoryCondition.CLEAN
    rank.state.roll_back()
    rank.check(3)


@pytest.mark.parametrize("where", ["gate", "unscaled", "stepped"])
def test_the_state_of_another_rank_finds_a_scaler_ready(where: str) -> None:
    other = ScaledRank()
    other.step()
    rank = ScaledRank()
    rank.break_off(where)
    rank.state._load(*copy_of(other.state.commit_image()))
    rank.check(4)


# The same order on a real GPU, and on two with NCCL; skipped where there are none


_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
_CYCLES = 1_000_000_000  # of the GPU's clock: about half a second


def _job() -> tuple[nn.Module, torch.optim.Optimizer, State]:
    model = nn.Linear(4, 4, bias=False).cuda()
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optim, begun(State(model=model, optim=optim))


@pytest.mark.skipif(_GPUS < 1, reason="needs a GPU")
def test_the_optimizer_waits_until_the_gradients_are_there() -> None:
    model, optim, state = _job()
    looked = []
    ended = torch.cuda.Event()

    def check() -> None:
        looked.append(ended.query())
        raise WorldChanged("interrupted while the host waited")

    state._gate = OptimizerGate(check)
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    torch.cuda._sleep(_CYCLES)  # stands for a collective whose peer is late
    ended.record()
    with pytest.raises(WorldChanged):
        optim.step()
    assert looked == [True]
    torch.cuda.synchronize()
    assert torch.equal(model.weight, before)
    assert state.rank_status().condition is MemoryCondition.CLEAN


@pytest.mark.skipif(_GPUS < 1, reason="needs a GPU")
def test_an_optimizer_is_not_captured_after_its_warm_up() -> None:
    model, optim, _ = _job()
    model.weight.grad = torch.ones_like(model.weight)
    optim.step()
    with pytest.raises(UsageError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optim.step()


@pytest.mark.skipif(_GPUS < 2, reason="needs two GPUs")
def test_nobody_commits_what_an_aborted_collective_has_left() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    port = free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        ranks[0].join(120)
        assert ranks[0].exitcode == 0
        raised, same, condition, counted = answers.get()
        assert (raised, same, condition) == (True, True, MemoryCondition.CLEAN.name)
        assert counted == 1
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _rank(rank: int, port: int, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=2)
    model, optim, state = _job()
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise WorldChanged

    state._gate = OptimizerGate(check)
    before = torch_private.nccl_collectives() or 0
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    counted = (torch_private.nccl_collectives() or 0) - before
    if rank == 1:
        threading.Event().wait()  # never comes to the next collective

    def interrupt() -> None:
        interrupted.set()
        torch_private.abort_nccl()

    weight = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    dist.all_reduce(model.weight.grad)
    threading.Timer(1.0, interrupt).start()
    raised = False
    try:
        optim.step()
    except WorldChanged:
        raised = True
    same = bool(torch.equal(model.weight, weight))
    answers.put((raised, same, state.rank_status().condition.name, counted))
    os._exit(0)
