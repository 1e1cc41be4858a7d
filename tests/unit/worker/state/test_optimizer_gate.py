"""No optimizer runs on gradients of an aborted collective and is committed."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.optimizer_gate import OptimizerGate
from elastic_runtime.worker.state.training_state import State
from tests.queued_device import QueuedDevice, QueuedSGD
from tests.unit.worker.state.small_job import begun


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

    def backward(self, weight: nn.Parameter) -> None:
        grad = weight.grad
        assert grad is not None
        self.device.kernel(lambda: grad.fill_(0.5))
        self.device.all_reduce(grad, whole=1.0)

    def replay(self, weight: nn.Parameter) -> None:
        """The same from a CUDA graph."""
        grad = weight.grad
        assert grad is not None
        self.device.kernel(lambda: grad.fill_(0.5))
        self.device.replay_reduce(grad, whole=1.0)

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
    status = rank.state.rank_status()
    assert status.condition in (MemoryCondition.CLEAN, MemoryCondition.FINISHED)
    if status.condition is MemoryCondition.FINISHED:
        rank.state.adopt()
    else:
        rank.state.roll_back()
    assert rank.values() == [10.0 - rank.state.step] * optimizers, values


def test_the_abort_comes_while_the_host_waits_for_the_gradients() -> None:
    rank = Rank()
    rank.device.when_blocked = rank.interrupt  # nobody comes: the agent ends it
    rank.backward(rank.weights[0])
    with pytest.raises(WorldChanged):
        rank.optims[0].step()
    assert rank.state.rank_status().condition is MemoryCondition.CLEAN
    assert rank.values() == [10.0]


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


def test_an_abort_after_the_look_finds_the_queue_empty() -> None:
    rank = Rank()
    rank.backward(rank.weights[0])
    rank.optims[0].step()
    rank.interrupt()
    rank.state.commit()  # counts: what it has computed is right
    assert rank.values() == [9.0]


def test_a_second_optimizer_without_a_collective_finishes_the_step() -> None:
    rank = Rank(optimizers=2)
    for weight in rank.weights:
        rank.backward(weight)
    rank.optims[0].step()
    rank.interrupt()
    rank.optims[1].step()
    rank.state.commit()
    assert rank.values() == [9.0, 9.0]


def test_what_a_cuda_graph_replays_is_waited_for_although_nobody_counts_it() -> None:
    rank = Rank()
    _step(rank, dies=9)  # the one in which the collective is recorded, and counted
    rank.device.when_blocked = rank.interrupt
    rank.replay(rank.weights[0])
    with pytest.raises(WorldChanged):
        rank.optims[0].step()
    assert rank.state.rank_status().condition is MemoryCondition.CLEAN
    assert rank.values() == [9.0]


def test_an_optimizer_that_comes_again_begins_another_step() -> None:
    """Several steps may be one commit; what the second one replays is waited for as well."""
    rank = Rank()
    _step(rank, dies=9)
    rank.optims[0].step()
    rank.device.when_blocked = rank.interrupt
    rank.replay(rank.weights[0])
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
