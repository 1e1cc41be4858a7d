"""Which parameters belong together, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from elastic_runtime.diloco.pairing import Pairing, pair_up, refuse_ddp
from elastic_runtime.errors import UsageError
from elastic_runtime.training.state import State
from elastic_runtime.worker.world import TrainsAlone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sparring(TrainsAlone):
    """Another object that commits a State."""


def model() -> nn.Sequential:
    """A model with parameters, buffers that can be averaged, and one that cannot."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def sgd(module: nn.Module) -> SGD:
    """An optimizer of all of it."""
    return SGD(module.parameters(), lr=0.1)


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
        outer = sgd(common)
        inner = sgd(replica)
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
    parts.inner, parts.outer = sgd(parts.replica[0]), sgd(parts.model[0])
    parts.state = State(model=parts.model, outer=parts.outer)
    pairing = parts.pair()
    assert names(pairing.parameters) == ["0.weight", "0.bias"]
    assert names(pairing.still) == ["1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    "models",
    [
        lambda model: {"teacher": nn.Linear(3, 2), "student": model},
        # Of two with the same forms the outer optimizer tells.
        lambda model: {"ema": copy.deepcopy(model), "student": model},
    ],
    ids=["other forms", "a copy"],
)
def test_the_common_model_is_the_one_with_the_forms_of_the_replica(
    models: Callable[[nn.Module], dict[str, nn.Module]],
) -> None:
    parts = Parts.right()
    parts.state = State(**models(parts.model), outer=parts.outer)
    assert parts.pair().name == "student"


def test_a_compiled_replica_and_a_wrapped_model_have_the_names_of_the_originals(
    one_rank: None,
) -> None:
    parts = Parts.right()
    parts.replica = torch.compile(parts.replica, backend="eager")
    parts.state = State(model=DistributedDataParallel(parts.model), outer=parts.outer)
    assert names(parts.pair().parameters) == [name for name, _ in parts.model.named_parameters()]


def test_without_an_outer_optimizer_there_is_none_to_check() -> None:
    parts = Parts.right()
    parts.state, parts.outer = State(model=parts.model), None
    assert len(parts.pair().parameters) == 6


Wrong = list[tuple[Any, str]]
NO_PARTS: Wrong = [
    (lambda has: {"state": has.model}, "DiLoCo needs the State first, not a Sequential: replica ="),
    (lambda has: {"replica": [has.replica]}, "model that this rank trains, not a list: replica ="),
    (
        lambda has: {"inner": StepLR(has.inner, 1)},
        r"\(inner=…\) is a StepLR, not an optimizer: rep",
    ),
    (lambda has: {"outer": 0.7}, r"DiLoCo\(outer=…\) is a float, not an optimizer: replica = copy"),
    (lambda has: has.state.entrust(Sparring()), "has a Sparring already, .* take one of them"),
    (
        lambda has: {"replica": DistributedDataParallel(has.replica)},
        "wrapped by DistributedDataParallel, .* and DiLoCo trains each rank alone",
    ),
]
NO_COPIES: Wrong = [
    (
        lambda has: {"state": State(model=has.model, replica=has.replica, outer=has.outer)},
        "leave the replica out of the State, .*: replica = copy",
    ),
    (lambda has: {"replica": has.model}, "leave the replica out .*, and make it a copy of the mod"),
    (lambda has: {"inner": has.outer}, "leave the inner optimizer out of the State, "),
    (
        lambda has: has.replica[2].register_parameter("weight", has.model[2].weight),
        r"shares its parameters with 'model' .* make a copy: replica = copy\.deepcopy",
    ),
    (
        lambda has: has.replica[1].register_buffer("running_mean", has.model[1].running_mean),
        "the replica shares its parameters with 'model' of the State",
    ),
    (
        lambda has: {"replica": (other := nn.Linear(3, 5)), "inner": sgd(other)},
        r"has no module with the names and shapes of the replica \(it has model\)",
    ),
    (lambda has: {"state": State()}, r"no module with the names and shapes .* \(it has none\)"),
    (
        lambda has: {"state": State(model=has.model, ema=copy.deepcopy(has.model)), "outer": None},
        r"has several modules with the names .* \(it has model, ema\)",
    ),
]
NO_OPTIMIZERS: Wrong = [
    (
        lambda has: has.inner.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        r"DiLoCo\(inner=…\) holds 1 parameters that are not the replica's",
    ),
    (lambda has: {"inner": sgd(has.model)}, r"\(inner=…\) holds 6 parameters that are not the rep"),
    (lambda has: {"outer": sgd(has.replica)}, "0 of the 6 parameters .* and 6 others; it must"),
    (lambda has: {"outer": sgd(has.model[0])}, "2 of the 6 parameters .* and 0 others"),
    (lambda has: {"inner": sgd(has.replica[0])}, "2 of the 2 parameters .* trains, and 4 others"),
    (
        lambda has: {"state": State(model=has.model)},
        r"not in the State: what it remembers .* write State\(model=…, outer=outer",
    ),
]


@pytest.mark.parametrize(("wrong", "told"), [*NO_PARTS, *NO_COPIES, *NO_OPTIMIZERS])
def test_what_does_not_belong_together_is_refused(one_rank: None, wrong: Any, told: str) -> None:
    parts = Parts.right()
    parts = replace(parts, **(wrong(parts) or {}))
    with pytest.raises(UsageError, match=told):
        parts.pair()
