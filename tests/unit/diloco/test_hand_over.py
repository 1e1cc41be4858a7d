"""What new ranks are given: real processes, real gloo."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.diloco import hand_over
from elastic_runtime.diloco.hand_over import hand_on, tell_all, transfer_group
from elastic_runtime.diloco.own_values import OwnValues
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.state.state_parts import OptimizerPart
from elastic_runtime.worker.state.training_state import State
from tests.ranks import run_ranks, values


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
    return OptimizerPart("inner", inner, {"replica": replica}, shadow=False)


def content(part: OptimizerPart) -> dict[str, Any]:
    """All that an optimizer holds, as plain values."""
    tree = part.tree()
    state = {
        name: {key: value.tolist() for key, value in values.items()}
        for name, values in tree["state"].items()
    }
    return {"state": state, "lr": [group["lr"] for group in tree["groups"]]}


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
    assert list(given["state"]) == ["replica.weight", "replica.bias"]
    assert given["state"]["replica.bias"]["step"] == 4.0
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
    sampler = ElasticBatchSampler(64, 4, rank=rank, world=3)
    state = State(sampler=sampler)
    state.seen, state.losses = [], torch.zeros(40)
    for step in range(rank + 1):
        sampler.commit()
        state.seen.append(step)
        state.losses += 1.0
    image = OwnValues(state).image() if rank == root else None
    with small_messages():
        image = tell_all(transfer_group(Peers()), image, root)
    OwnValues.load_image(state, *image)
    return sampler.cursor, state.seen, state.losses.tolist()


def test_all_ranks_get_the_values_of_one() -> None:
    assert values(run_ranks(3, told, 1)) == [(8, [0, 1], [2.0] * 40)] * 3
