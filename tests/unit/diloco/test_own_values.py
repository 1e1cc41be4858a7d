"""What a rank keeps beside its parameters, puts back, and gives to new ones."""

from __future__ import annotations

import json
import random
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.diloco import hand_over
from elastic_runtime.diloco.hand_over import hand_on, tell_all, transfer_group
from elastic_runtime.diloco.own_values import OwnValues, stateful
from elastic_runtime.parts.optimizer_part import OptimizerPart, ParameterNames
from elastic_runtime.training.state import State
from elastic_runtime.worker.peers import Peers
from tests.ranks import run_ranks, values


class Statistics:
    """Something else with a state dict, which holds a tensor."""

    def __init__(self) -> None:
        self.losses = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses, "of": [1, (2, 3)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"].clone()


class Work:
    """A State with a bit of everything, some steps after its commit."""

    def __init__(self, steps: int = 0) -> None:
        self.model = nn.Linear(2, 2)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(range(64), 4)
        self.statistics = Statistics()
        self.state = State(
            model=self.model, optim=self.optim, loader=self.loader, statistics=self.statistics
        ).keep_in_memory()
        self.state.seen = 0
        self.state.history = []
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Changes all of it, and the models too."""
        next(self.loader.steps())
        self.loader.commit()
        self.statistics.losses += 1.0
        self.state.seen += 4
        self.state.history.append(self.state.seen)
        with torch.no_grad():
            self.model.weight.fill_(self.state.seen)

    @property
    def position(self) -> tuple[int, float, int, list[int]]:
        """Where it is."""
        losses = self.statistics.losses[0].item()
        return self.loader.cursor, losses, self.state.seen, list(self.state.history)


def sent(values: OwnValues) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What arrives on another rank."""
    meta, tensors = values.image()
    return json.loads(json.dumps(meta)), [tensor.clone() for tensor in tensors]


def test_what_was_there_is_put_back() -> None:
    work = Work(steps=2)
    before = work.position
    kept = OwnValues(work.state)
    work.step()
    work.state.more = 1
    assert work.position != before
    kept.put_back(work.state)
    assert work.position == before == (8, 2.0, 8, [4, 8])
    assert not hasattr(work.state, "more")
    assert work.model.weight.tolist() == [[12.0, 12.0]] * 2, "models are none of its business"


def test_random_generators_go_back_too() -> None:
    work = Work()
    kept = OwnValues(work.state)
    drawn = torch.rand(2).tolist(), random.random()
    kept.put_back(work.state)
    assert (torch.rand(2).tolist(), random.random()) == drawn


def test_generators_that_a_state_leaves_out_are_left_alone() -> None:
    state = State(model=nn.Linear(1, 1), generators=False).keep_in_memory()
    kept = OwnValues(state)
    torch.manual_seed(5)
    kept.put_back(state)
    assert torch.initial_seed() == 5


def test_another_rank_takes_over_everything_but_the_generators() -> None:
    giver, taker = Work(steps=3), Work(steps=1)
    image = sent(OwnValues(giver.state))
    giver.step()  # it goes on meanwhile
    torch.manual_seed(5)
    drawn = torch.rand(2).tolist()
    torch.manual_seed(5)
    OwnValues.load_image(taker.state, *image)
    assert taker.position == (12, 3.0, 12, [4, 8, 12])
    assert taker.model.weight.tolist() == [[4.0, 4.0]] * 2
    assert torch.rand(2).tolist() == drawn


def test_hyperparameters_of_optimizers_are_put_back_and_given_away() -> None:
    giver, taker = Work(), Work()
    giver.optim.param_groups[0]["lr"] = 0.05  # as a scheduler does, after a commit
    kept = OwnValues(giver.state)
    giver.optim.param_groups[0]["lr"] = 0.1
    OwnValues.load_image(taker.state, *sent(kept))
    kept.put_back(giver.state)
    assert [one.optim.param_groups[0]["lr"] for one in (giver, taker)] == [0.05, 0.05]
    assert giver.optim.param_groups[0]["params"] == list(giver.model.parameters())


def test_an_image_is_told_apart_by_the_names_of_its_parts() -> None:
    meta, tensors = sent(OwnValues(Work(steps=3).state))
    parts = OwnValues.decoded(meta, tensors)
    assert parts["loader"]["cursor"] == 12
    assert parts["statistics"]["of"] == [1, (2, 3)]
    assert parts["statistics"]["losses"].tolist() == [3.0] * 3
    assert meta["tensors"] == [[[3], "float32", "cpu"]]


def test_models_and_optimizers_are_none_of_the_stateful_parts() -> None:
    assert [part.name for part in stateful(Work().state)] == ["loader", "statistics"]


# What new ranks are given: real processes, real gloo


def small_messages() -> Any:
    """Has even a small model take several messages."""
    return mock.patch.object(hand_over, "MESSAGE_BYTES", 64)


def trained(replica: nn.Module, steps: int) -> OptimizerPart:
    """An inner optimizer that has made so many steps."""
    inner = torch.optim.AdamW(replica.parameters(), lr=0.1 / (steps + 1))
    torch.manual_seed(steps)
    for _ in range(steps):
        replica(torch.rand(4, 3)).square().sum().backward()
        inner.step()
    return OptimizerPart("inner", inner, ParameterNames({"replica": replica}))


def content(part: OptimizerPart) -> dict[str, Any]:
    """All that an optimizer holds, as plain values."""
    held = {k: v.tolist() for k, v in part.saved(0).items() if torch.is_tensor(v)}
    return {"state": held, "lr": [group["lr"] for group in part.hyperparameters()]}


def handed_on(giver: int, receivers: list[int], steps: list[int]) -> tuple[Any, Any, bool]:
    """What this rank's optimizer held before and holds after, and whether it makes steps."""
    replica = nn.Linear(3, 30)
    part = trained(replica, steps[dist.get_rank()])
    before = content(part)
    with small_messages():
        hand_on(transfer_group(Peers()), part, giver, receivers)
    after = content(part)
    replica(torch.ones(1, 3)).sum().backward()
    part.optimizer.step()
    return before, after, content(part) != after


def test_new_ranks_get_the_inner_optimizers_state_along_a_chain() -> None:
    ranks = values(run_ranks(3, handed_on, 1, [2, 0], [0, 4, 2]))
    given = ranks[1][0]
    assert {key.rpartition(".")[0] for key in given["state"]} == {
        "inner.state.replica.weight",
        "inner.state.replica.bias",
    }
    assert given["state"]["inner.state.replica.bias.step"] == 4.0
    assert [after for _, after, _ in ranks] == [given] * 3
    assert ranks[0][0] != given != ranks[2][0]
    assert all(steps for *_, steps in ranks)


def test_a_rank_that_is_not_new_keeps_the_state_of_its_own() -> None:
    ranks = values(run_ranks(3, handed_on, 0, [2], [3, 2, 0]))
    assert ranks[2][1] == ranks[0][0]
    assert ranks[1][1] == ranks[1][0] != ranks[0][0]


def test_an_optimizer_that_has_made_no_step_is_handed_on_as_it_is() -> None:
    ranks = values(run_ranks(2, handed_on, 0, [1], [0, 2]))
    assert ranks[1][1] == ranks[0][0]
    assert ranks[1][1]["state"] == {}


def other_parameters() -> None:
    """The last of the new ranks trains another model."""
    replica = nn.Sequential(nn.Linear(3, 4)) if dist.get_rank() == 2 else nn.Linear(3, 4)
    hand_on(transfer_group(Peers()), trained(replica, 1), 0, [1, 2])


def test_a_rank_with_other_parameters_refuses() -> None:
    refused = run_ranks(3, other_parameters)[2]
    assert refused.error == "UsageError"
    assert "the parameters of 'inner'" in refused.text
    assert "replica.0.weight" in refused.text


def told(root: int) -> tuple[int, list[int], list[float]]:
    """What this rank has after one has told its values to all."""
    rank = dist.get_rank()
    loader = DataLoader(range(64), 4)
    state = State(loader=loader).keep_in_memory()
    state.seen, state.losses = [], torch.zeros(40)
    for step in range(rank + 1):
        next(loader.steps())
        loader.commit()
        state.seen.append(step)
        state.losses += 1.0
    image = OwnValues(state).image() if rank == root else None
    with small_messages():
        image = tell_all(transfer_group(Peers()), image, root)
    OwnValues.load_image(state, *image)
    return loader.cursor, state.seen, state.losses.tolist()


def test_all_ranks_get_the_values_of_one() -> None:
    assert values(run_ranks(3, told, 1)) == [(8, [0, 1], [2.0] * 40)] * 3
