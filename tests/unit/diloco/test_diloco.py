"""``DiLoCo`` and ``LocalSGD``: what they compute, in real processes, and what they refuse."""

from __future__ import annotations

import copy
import os
import re
from functools import partial
from math import nan
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ProgressFile
from elastic_runtime.worker.context import context
from tests.ranks import run_ranks, values
from tests.unit.diloco.small_net import (
    Job,
    Launcher,
    Row,
    adamw,
    inner_step,
    net,
    row,
    with_statistics,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elastic_runtime.worker.world import World

STEPS = 12


def close(expected: Any) -> Any:
    """Equal but for roundings of float32."""
    return pytest.approx(expected, abs=1e-6)


# What is computed


def trained(options: dict[str, Any], steps: int = STEPS) -> tuple[list[Row], list[Row], Row, int]:
    """The common models after each sync, this rank's own before it and at the end, and the step."""
    launcher = Launcher()
    job = Job(**options)

    def train(world: World) -> tuple[Row, int]:
        for _ in range(steps):
            job.step(world)
        return row(job.replica), job.state.step  # a last sync follows, if it is still to be made

    return job.commons, job.owns, *launcher.run(train, job.state)


class ByHand:
    """DiLoCo with all ranks in one process, step by step as the papers have it."""

    def __init__(self, ranks: int, every: int, fragments: int, delay: int, mix: float) -> None:
        self.common = net(0)
        self.replicas = [copy.deepcopy(self.common) for _ in range(ranks)]
        self.inners = [adamw(replica) for replica in self.replicas]
        self.momenta: list[torch.Tensor | None] = [None] * 4
        self.pieces = [range(4)] if fragments == 1 else [range(2), range(2, 4)]
        self.turn, self.every, self.delay, self.mix = every // fragments, every, delay, mix
        self.commons: list[Row] = []
        self.means: dict[int, torch.Tensor] = {}

    def train(self, steps: int) -> None:
        for step in range(1, steps + 1):
            for rank, (replica, inner) in enumerate(zip(self.replicas, self.inners, strict=True)):
                inner_step(replica, inner, rank, step)
            piece = self.pieces[(step - 1) // self.turn % len(self.pieces)]
            with torch.no_grad():
                if step % self.turn == (self.turn - self.delay) % self.turn:
                    self.means = {number: self.mean_change(number) for number in piece}
                if step % self.turn == 0:
                    for number in piece:
                        self.sync(number)
                    self.commons.append(row(self.common))

    def mean_change(self, number: int) -> torch.Tensor:
        common = list(self.common.parameters())[number]
        owns = [list(replica.parameters())[number] for replica in self.replicas]
        return torch.stack([common - own for own in owns]).mean(0)

    def sync(self, number: int) -> None:
        """A step of SGD with Nesterov momentum along the mean change."""
        gradient, momentum = self.means[number], self.momenta[number]
        momentum = gradient if momentum is None else 0.9 * momentum + gradient
        self.momenta[number] = momentum
        common = list(self.common.parameters())[number]
        common -= 0.7 * (gradient + 0.9 * momentum)
        for replica in self.replicas:
            own = list(replica.parameters())[number]
            own.copy_(self.mix * own + (1 - self.mix) * common)


@pytest.mark.parametrize(
    ("every", "fragments", "delay", "mix"),
    [(3, 1, 0, 0.0), (6, 1, 2, 0.0), (6, 2, 0, 0.0), (6, 2, 1, 0.25)],
)
def test_the_common_model_is_what_a_computation_by_hand_gives(
    every: int, fragments: int, delay: int, mix: float
) -> None:
    by_hand = ByHand(2, every, fragments, delay, mix)
    by_hand.train(STEPS)
    options = {"sync_every": every, "fragments": fragments, "delay": delay, "mix": mix}
    ranks = values(run_ranks(2, trained, options))
    syncs = STEPS * fragments // every
    assert len(by_hand.commons) == syncs
    for rank, (commons, _, own, step) in enumerate(ranks):
        assert commons == [close(each) for each in by_hand.commons]
        assert own == close(row(by_hand.replicas[rank]))
        assert step == syncs
    assert ranks[0][0] == ranks[1][0], "to the last bit"


def test_local_sgd_takes_the_mean_of_the_replicas() -> None:
    ranks = values(run_ranks(2, trained, {"average": True, "sync_every": 4}))
    (commons, first, *_), (_, second, *_) = ranks
    assert len(commons) == 3
    for common, one, other in zip(commons, first, second, strict=True):
        assert one != close(other), "the ranks have trained apart"
        assert common == close([(a + b) / 2 for a, b in zip(one, other, strict=True)])


def test_a_rank_alone_is_its_own_mean() -> None:
    ((commons, owns, own, step),) = values(run_ranks(1, trained, {"average": True}))
    assert commons == [close(each) for each in owns]
    assert (own, step) == (commons[-1], 4)


def statistics() -> list[tuple[Row, int]]:
    """Mean and variance, and the count of batches: common ones after the sync of a fragment; before
    that of the last one a rank's own; after it the common ones and its own."""
    launcher = Launcher()
    job = Job(make=with_statistics, sync_every=2, fragments=2)
    found = []

    def note(model: nn.Sequential) -> None:
        norm: Any = model[1]
        buffers = row([norm.running_mean, norm.running_var])
        found.append((buffers, int(norm.num_batches_tracked)))

    def train(world: World) -> None:
        job.step(world)
        note(job.model)
        inner_step(job.replica, job.inner, world.rank, 2)
        note(job.replica)
        job.diloco.step()

    launcher.run(train, job.state)
    note(job.model)
    note(job.replica)
    return found


def test_the_buffers_of_the_common_model_are_the_mean_and_come_with_the_last_fragment() -> None:
    ranks = values(run_ranks(2, statistics))
    first, second = (own for _, (own, _), *_ in ranks)
    assert first != close(second)
    mean = close([(a + b) / 2 for a, b in zip(first, second, strict=True)])
    as_it_was = [0.0] * 4 + [1.0] * 4, 0
    assert ranks == [[as_it_was, (own, 2), (mean, 2), (mean, 2)] for own in (first, second)]


def frozen() -> list[Any]:
    """What a replica begins with that is neither trained nor averaged, and what is common."""
    launcher = Launcher()
    rank = int(os.environ["RANK"])
    model = with_statistics(rank)
    replica = with_statistics(rank + 5)
    for one, count in ((model, rank + 3), (replica, 9)):
        one[1].num_batches_tracked.fill_(count)
    state = elastic.State(model=model)
    inner = torch.optim.SGD(replica[2].parameters(), lr=0.1)
    elastic.LocalSGD(state, replica, inner=inner, sync_every=2)
    launcher.run(lambda world: None, state)
    return [(row(one), one[1].num_batches_tracked.item()) for one in (model, replica)]


def test_what_is_not_trained_is_that_of_the_common_model_from_the_beginning() -> None:
    ranks = values(run_ranks(2, frozen))
    assert ranks == [[(row(with_statistics(0)), 3)] * 2] * 2


# A replica that diverges


def diverging(ranks: tuple[int, ...]) -> tuple[list[Row], list[Row], list[int], list[Row]]:
    """Some replicas have become NaN in the third inner step.

    Returns:
        The common models, the replicas before the syncs and right after them, and how many
        parameters the inner optimizer had a state of after each sync.
    """
    launcher = Launcher()
    job = Job(average=True)
    states, after = [], []

    def train(world: World) -> None:
        for step in range(1, 7):
            inner_step(job.replica, job.inner, world.rank, step)
            if step == 3 and world.rank in ranks:
                with torch.no_grad():
                    job.replica[2].weight[0, 0] = nan
            if job.come_together():
                states.append(len(job.inner.state))
                after.append(row(job.replica))

    launcher.run(train, job.state)
    return job.commons, job.owns, states, after


def test_a_replica_that_has_diverged_is_dropped_and_its_rank_goes_on_from_the_common_model() -> (
    None
):
    healthy, diverged = values(run_ranks(2, diverging, (1,)))
    commons, first, states, after = healthy
    assert commons == diverged[0]
    assert commons[0] == close(first[0]), "the mean is that of the healthy rank"
    assert after == diverged[3] == commons
    assert (states, diverged[2]) == ([4, 4], [0, 4])
    second = [(a + b) / 2 for a, b in zip(first[1], diverged[1][1], strict=True)]
    assert commons[1] == close(second), "it counts again"


def test_a_training_that_has_diverged_on_all_ranks_ends() -> None:
    outcomes = run_ranks(2, diverging, (0, 1))
    assert [outcome.error for outcome in outcomes] == ["NothingToAverage"] * 2
    assert "lower the inner learning rate" in outcomes[0].text


# What moves with inner steps, and the end of training


def progress(steps: int, fragments: int = 1) -> tuple[list[Any], list[int], int, str]:
    """What a rank says of itself after each inner step, and after a last sync."""
    launcher = Launcher()
    loader = DataLoader(range(64), 2)
    job = Job(parts={"loader": loader}, sync_every=4, fragments=fragments)
    # In place of the file that an agent makes.
    context()._progress = published = ProgressFile("")
    found: list[Any] = []
    ends: list[int] = []

    def train(world: World) -> str:
        given = loader.steps()
        for _ in range(steps):
            next(given)
            synced = job.step(world)
            inner = job.diloco.inner_steps
            found.append((synced, inner, published.kept[1], job.state.step, loader.cursor))
        said = repr(job.diloco)
        for _ in range(2):
            job.diloco.sync()
            ends.append(job.state.step)
        return said

    said: str = launcher.run(train, job.state)
    return found, ends, job.diloco.inner_steps, said


def test_a_rank_counts_its_inner_steps_and_loaders_move_with_them() -> None:
    found = [
        (False, 1, 1, 0, 2),
        (False, 2, 2, 0, 4),
        (False, 3, 3, 0, 6),
        (True, 0, 4, 1, 8),  # what is told of them is told of step 0
        (False, 1, 1, 1, 10),
        (False, 2, 2, 1, 12),
    ]
    said = "DiLoCo(inner step 2 of 4, after 1 syncs)"
    # The last inner steps count by a sync more; a second one has nothing to do.
    assert values(run_ranks(2, progress, 6)) == [(found, [2, 2], 0, said)] * 2


@pytest.mark.parametrize(("steps", "end"), [(4, 3), (5, 3), (1, 1), (0, 0)])
def test_a_last_sync_is_one_step_of_all_fragments_that_were_trained_since_their_own(
    steps: int, end: int
) -> None:
    ranks = values(run_ranks(2, progress, steps, 2))
    assert [ends for _, ends, *_ in ranks] == [[end, end]] * 2


# What is refused


def loop_of(loss: Callable[[Any, Any], None], *, early: bool = False) -> Any:
    """One step of two pieces with this backward pass, and the inner optimizer in it."""
    launcher = Launcher()
    loader = DataLoader(torch.randn(64, 3), 4, at_once=1)
    job = Job(parts={"loader": loader}, sync_every=4)

    def train(world: World) -> None:
        for step in loader.steps(steps=2):
            for inputs in step:
                loss(step, job.replica(inputs).square().mean())
                if early:
                    job.inner.step()
            job.inner.step()
            job.diloco.step()

    launcher.run(train, job.state)


def by_hand(step: Any, loss: torch.Tensor) -> None:
    loss.backward()


def weighed(step: Any, loss: torch.Tensor) -> None:
    step.backward(loss)


def test_a_loop_that_does_not_weigh_its_pieces_is_refused() -> None:
    outcomes = run_ranks(2, loop_of, by_hand)
    assert "gradients of step 1 were not weighed" in outcomes[0].text
    assert values(run_ranks(2, loop_of, weighed)) == [None, None]


def early_loop() -> None:
    loop_of(weighed, early=True)


def test_an_inner_optimizer_before_the_last_piece_is_refused() -> None:
    outcomes = run_ranks(2, early_loop)
    assert "after piece 1 of 2" in outcomes[0].text


def alone(**options: Any) -> Any:
    """As a script makes it, with what is said."""
    model = net(0)
    replica = copy.deepcopy(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.7)
    settings = {"inner": adamw(replica), "outer": outer, "sync_every": 6, **options}
    return elastic.DiLoCo(elastic.State(model=model, outer=outer), replica, **settings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sync_every": 0}, r"DiLoCo\(sync_every=0\): give a whole number, 1 or more"),
        ({"sync_every": True}, r"DiLoCo\(sync_every=True\): give a whole number"),
        ({"fragments": 0}, r"DiLoCo\(fragments=0\): give a whole number, 1 or more"),
        ({"delay": -1}, r"DiLoCo\(delay=-1\): give a whole number, 0 or more"),
        ({"mix": "half"}, "mix='half': a share from 0 to below 1"),
        ({"fragments": 4}, "sync_every=6 cannot be divided into turns of 4 fragments; take a mul"),
        ({"fragments": 6}, "fragments=6, and the replica has 4 parameters .* take fewer"),
        ({"delay": 6}, "delay=6: .* which is 6 inner steps earlier; take less than 6"),
        ({"fragments": 3, "delay": 2}, "delay=2: .* take less than 2"),
        ({"mix": 1.0}, r"mix=1\.0: a share from 0 to below 1"),
        ({"mix": -0.1}, r"mix=-0\.1: a share from 0 to below 1"),
        ({"mix": nan}, "mix=nan: a share from 0 to below 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        alone(**options)


def test_local_sgd_goes_by_its_own_name_in_messages() -> None:
    model = net(0)
    replica, state = copy.deepcopy(model), elastic.State(model=model)
    with pytest.raises(UsageError, match=r"^LocalSGD\(sync_every=0\)"):
        elastic.LocalSGD(state, replica, inner=adamw(replica), sync_every=0)
    elastic.LocalSGD(state, replica, inner=adamw(replica), sync_every=1)
    with pytest.raises(UsageError, match="this State has a LocalSGD already"):
        elastic.LocalSGD(state, replica, inner=adamw(replica), sync_every=1)


def test_what_was_refused_leaves_the_state_as_it_was() -> None:
    model = net(0)
    replica, state = copy.deepcopy(model), elastic.State(model=model)
    local = partial(elastic.LocalSGD, state, replica, inner=adamw(replica))
    with pytest.raises(UsageError, match="fragments=6"):
        local(sync_every=6, fragments=6)
    assert isinstance(local(sync_every=6, fragments=3), elastic.LocalSGD)


def test_a_step_outside_of_elastic_run_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^DiLoCo\.step\(\) outside of elastic\.run"):
        alone().step()


def forgets(what: str, folder: str) -> str:
    """A script that leaves something out, or commits by itself."""
    launcher = Launcher()
    job = Job(sync_every=4)
    noted: list[str] = []
    mock.patch.object(context(), "note", lambda event: noted.append(event.name)).start()

    def train(world: World) -> None:
        if what == "group":
            job.inner.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        for number in range(30):
            if what != "inner":
                inner_step(job.replica, job.inner, world.rank, number)
            if what != "step":
                job.diloco.step()
        if what == "commit":
            job.state.commit()
        if what != "sync":
            job.diloco.sync()

    job.state.checkpoints(folder)
    launcher.run(train, job.state)
    return ", ".join(noted)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("inner", "there were 24 inner steps, and the inner optimizer has made none: call inner"),
        ("step", r"the inner optimizer has made 9 steps, and the step\(\) of DiLoCo was not cal"),
        ("group", "the inner optimizer got another group of parameters after DiLoCo was made"),
        ("commit", r"this State is committed by its DiLoCo.*leave out commit\(\)"),
    ],
)
def test_what_a_script_leaves_out_is_said(what: str, told: str, tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, forgets, what, str(tmp_path))
    assert outcome.error.endswith("UsageError"), outcome
    assert re.search(told, outcome.text)


def test_last_inner_steps_that_do_not_count_are_said(tmp_path: Path) -> None:
    (left_out, all_in) = (
        values(run_ranks(1, forgets, what, str(tmp_path / what)))[0] for what in ("sync", "")
    )
    assert "state.replicas_left_out" in left_out
    assert "state.replicas_left_out" not in all_in
