"""Which parameters belong together, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from elastic_runtime.diloco.pairing import Pairing, pair_up, refuse_ddp
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.state.training_state import State
from elastic_runtime.worker.world import TrainsAlone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sparring(TrainsAlone):
    """Another object that commits a State."""


def model() -> nn.Sequential:
    """A model with parameters, buffers that can be averaged, and one that cannot."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@dataclass
class Parts:
    """What a script has, right as it is."""

    model: Any
    replica: Any
    state: Any
    inner: Any
    outer: Any

    @classmethod
    def right(cls) -> Parts:
        """As they belong together."""
        common = model()
        replica = copy.deepcopy(common)
        outer = SGD(common.parameters(), lr=0.7)
        inner = SGD(replica.parameters(), lr=0.1)
        return cls(common, replica, State(model=common, outer=outer), inner, outer)

    def pair(self) -> Pairing:
        """Looks which parameters belong together; for LocalSGD if there is no outer optimizer."""
        return pair_up(
            "DiLoCo" if self.outer else "LocalSGD", self.state, self.replica, self.inner, self.outer
        )


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_replica_that_is_wrapped_later_is_noticed(one_rank: None) -> None:
    parts = Parts.right()
    refuse_ddp("DiLoCo", parts.replica)
    wrapped = DistributedDataParallel(parts.replica)
    with pytest.raises(UsageError, match="wrapped by DistributedDataParallel"):
        refuse_ddp("DiLoCo", parts.replica)
    refuse_ddp("DiLoCo", parts.model)
    del wrapped


def names(pairs: list[Any]) -> list[str]:
    return [pair.name for pair in pairs]


def test_each_tensor_is_paired_with_the_one_of_the_same_name() -> None:
    parts = Parts.right()
    pairing = parts.pair()
    assert (pairing.name, pairing.replica) == ("model", parts.replica)
    assert names(pairing.parameters) == [name for name, _ in parts.model.named_parameters()]
    assert names(pairing.floats) == ["1.running_mean", "1.running_var"]
    assert names(pairing.others) == ["1.num_batches_tracked"]
    assert pairing.still == []
    for one in (*pairing.parameters, *pairing.floats, *pairing.others):
        module, _, key = one.name.rpartition(".")
        assert one.common is getattr(parts.model.get_submodule(module), key)
        assert one.own is getattr(parts.replica.get_submodule(module), key)


def test_parameters_that_the_inner_optimizer_leaves_out_stand_still() -> None:
    parts = Parts.right()
    parts.inner = SGD(parts.replica[0].parameters(), lr=0.1)
    parts.outer = SGD(parts.model[0].parameters(), lr=0.7)
    parts.state = State(model=parts.model, outer=parts.outer)
    pairing = parts.pair()
    assert names(pairing.parameters) == ["0.weight", "0.bias"]
    assert names(pairing.still) == ["1.weight", "1.bias", "2.weight", "2.bias"]


def test_the_common_model_is_the_one_with_the_forms_of_the_replica() -> None:
    parts = Parts.right()
    parts.state = State(teacher=nn.Linear(3, 2), student=parts.model, outer=parts.outer)
    assert parts.pair().name == "student"


def test_a_compiled_replica_belongs_to_the_model_that_it_was_made_of() -> None:
    parts = Parts.right()
    parts.replica = torch.compile(parts.replica, backend="eager")
    assert names(parts.pair().parameters) == [name for name, _ in parts.model.named_parameters()]


def test_of_two_models_with_the_same_forms_the_outer_optimizer_tells() -> None:
    parts = Parts.right()
    parts.state = State(ema=copy.deepcopy(parts.model), model=parts.model, outer=parts.outer)
    assert parts.pair().name == "model"


def test_the_common_model_may_be_wrapped(one_rank: None) -> None:
    parts = Parts.right()
    parts.state = State(model=DistributedDataParallel(parts.model), outer=parts.outer)
    assert names(parts.pair().parameters) == [name for name, _ in parts.model.named_parameters()]


def test_without_an_outer_optimizer_there_is_none_to_check() -> None:
    parts = Parts.right()
    parts.state, parts.outer = State(model=parts.model), None
    assert len(parts.pair().parameters) == 6


def no_state(parts: Parts) -> None:
    parts.state = parts.model


def no_module(parts: Parts) -> None:
    parts.replica = list(parts.replica.parameters())


def ddp(parts: Parts) -> None:
    parts.replica = DistributedDataParallel(parts.replica)


def no_inner(parts: Parts) -> None:
    parts.inner = torch.optim.lr_scheduler.StepLR(parts.inner, 1)


def no_outer(parts: Parts) -> None:
    parts.outer = 0.7


def nothing_inside(parts: Parts) -> None:
    parts.inner = None


def second(parts: Parts) -> None:
    parts.state.entrust(Sparring())


def replica_in_state(parts: Parts) -> None:
    parts.state = State(model=parts.model, replica=parts.replica, outer=parts.outer)


def no_copy(parts: Parts) -> None:
    parts.replica = parts.model


def inner_in_state(parts: Parts) -> None:
    parts.inner = parts.outer


def other_model(parts: Parts) -> None:
    parts.replica = nn.Linear(3, 5)
    parts.inner = SGD(parts.replica.parameters(), lr=0.1)


def no_model(parts: Parts) -> None:
    parts.state = State()


def two_models(parts: Parts) -> None:
    parts.state = State(model=parts.model, ema=copy.deepcopy(parts.model), outer=parts.outer)
    parts.outer = None


def outer_left_out(parts: Parts) -> None:
    parts.state = State(model=parts.model)


def shared(parts: Parts) -> None:
    parts.replica[2].weight = parts.model[2].weight


def shared_buffer(parts: Parts) -> None:
    parts.replica[1].running_mean = parts.model[1].running_mean


def foreign_inner(parts: Parts) -> None:
    parts.inner = SGD([*parts.replica.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)


def inner_of_common(parts: Parts) -> None:
    parts.inner = SGD(parts.model.parameters(), lr=0.1)


def outer_of_replica(parts: Parts) -> None:
    parts.outer = SGD(parts.replica.parameters(), lr=0.7)


def outer_with_less(parts: Parts) -> None:
    parts.outer = SGD(parts.model[0].parameters(), lr=0.7)


def outer_with_more(parts: Parts) -> None:
    parts.inner = SGD(parts.replica[0].parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (no_state, "DiLoCo needs the State first, not a Sequential: replica = copy.deepcopy"),
        (no_module, "DiLoCo needs the model that this rank trains, not a list: replica = copy"),
        (ddp, "wrapped by DistributedDataParallel, .* and DiLoCo trains each rank alone"),
        (no_inner, r"DiLoCo\(inner=…\) is a StepLR, not an optimizer: replica = copy"),
        (no_outer, r"DiLoCo\(outer=…\) is a float, not an optimizer: replica = copy"),
        (nothing_inside, r"DiLoCo\(inner=…\) is a NoneType, not an optimizer"),
        (second, "this State has a Sparring already, .* take one of them"),
        (replica_in_state, "leave the replica out of the State, .*: replica = copy"),
        (no_copy, "leave the replica out of the State, .*, and make it a copy of the model: repl"),
        (inner_in_state, "leave the inner optimizer out of the State, "),
        (other_model, r"has no module with the names and shapes of the replica \(it has model\)"),
        (no_model, r"has no module with the names and shapes of the replica \(it has none\)"),
        (two_models, r"has several modules with the names .* \(it has model, ema\)"),
        (shared, r"shares its parameters with 'model' .* make a copy: replica = copy\.deepcopy"),
        (shared_buffer, "the replica shares its parameters with 'model' of the State"),
        (foreign_inner, r"DiLoCo\(inner=…\) holds 1 parameters that are not the replica's"),
        (inner_of_common, r"DiLoCo\(inner=…\) holds 6 parameters that are not the replica's"),
        (outer_of_replica, r"holds 0 of the 6 parameters of 'model' .* and 6 others; it must"),
        (outer_with_less, r"DiLoCo\(outer=…\) holds 2 of the 6 parameters .* and 0 others"),
        (
            outer_left_out,
            r"not in the State: what it remembers .* write State\(model=…, outer=outer",
        ),
        (outer_with_more, r"holds 2 of the 2 parameters of 'model' .* trains, and 4 others"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    wrong: Callable[[Parts], None], told: str, request: pytest.FixtureRequest
) -> None:
    if wrong is ddp:
        request.getfixturevalue("one_rank")
    parts = Parts.right()
    wrong(parts)
    with pytest.raises(UsageError, match=told):
        parts.pair()
