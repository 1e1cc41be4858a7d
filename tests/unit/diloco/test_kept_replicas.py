"""What ranks keep when the world changes between two syncs: one process in two worlds in a row."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.data.sampler import ElasticBatchSampler
from tests.ranks import run_ranks, values
from tests.unit.diloco.small_net import Job, Launcher, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.worker.world import World

EVERY = 6


class Broken(Exception):
    """The world is over."""


def snapshot(job: Job, loader: DataLoader | None = None) -> dict[str, Any]:
    """Where a rank is, and what it has."""
    bias = job.inner.state.get(job.replica[0].bias)
    found = {
        "step": job.state.step,
        "inner": job.diloco.inner_steps,
        "replica": row(job.replica),
        "common": row(job.model),
        "seen": job.state.seen,
        "momentum": bias["exp_avg"].tolist() if bias else None,
    }
    if loader is not None:
        found["cursor"] = loader.cursor
        found["shares"] = list(loader.batch_sampler)
    return found


def regrouped(made: tuple[int, ...], sampled: bool, **options: Any) -> tuple[dict[str, Any], ...]:
    """Ranks that have made so many inner steps since a sync when another one joins.

    Args:
        made: by each of the first ranks; there is one rank more in the second world.
        sampled: with a loader in the State.
        **options: of ``DiLoCo``.

    Returns:
        Where this rank was when the first world ended, where it is when the second one begins and
        where it is after a further sync. The first is empty for the new rank.
    """
    launcher = Launcher(worlds=2)
    rank, first = int(os.environ["RANK"]), len(made)
    loader = DataLoader(range(600), 12, seed=1)
    job = Job(parts={"loader": loader} if sampled else {}, sync_every=EVERY, **options)
    job.state.seen = 0
    before: dict[str, Any] = {}
    begins: list[dict[str, Any]] = []

    def step(world: World, steps: Iterator[Any]) -> bool:
        if sampled:
            next(steps)
        job.state.seen += 1
        return job.step(world)

    def first_world(world: World) -> None:
        steps = loader.steps()
        while not step(world, steps):
            pass
        for _ in range(made[world.rank]):
            step(world, steps)
        before.update(snapshot(job, loader if sampled else None))
        raise Broken

    def second_world(world: World) -> dict[str, Any]:
        begins.append(snapshot(job, loader if sampled else None))
        steps = loader.steps()
        while not step(world, steps):
            pass
        return snapshot(job)

    if rank < first:
        with pytest.raises(Broken):
            launcher.run(first_world, job.state, size=first)
    after = launcher.run(second_world, job.state, world=1, size=first + 1)
    return before, begins[0], {**after, "own": job.owns[-1]}


Ranks = list[tuple[dict[str, Any], ...]]


@pytest.fixture(scope="module")
def joined() -> Ranks:
    return values(run_ranks(3, regrouped, (2, 4), True))


def test_ranks_go_on_with_what_they_have_and_a_new_one_begins_where_the_furthest_is(
    joined: Ranks,
) -> None:
    (first, second, new) = [begin for _, begin, _ in joined]
    for (before, _, _), begin in zip(joined[:2], (first, second), strict=True):
        assert {**begin, "shares": None} == {**before, "shares": None}
    assert (first["inner"], second["inner"]) == (2, 4)
    assert new["replica"] == new["common"] == first["common"]
    others = ("step", "inner", "seen", "cursor", "momentum")
    assert [new[key] for key in others] == [second[key] for key in others]
    assert new["momentum"] is not None


def test_every_sample_is_taken_once_whoever_takes_it(joined: Ranks) -> None:
    """Rank 0 is two batches behind: it takes its old shares of these, and then one of three."""
    first, second, new = (begin["shares"] for _, begin, _ in joined)
    order = [
        index for batch in ElasticBatchSampler(600, 12, seed=1, rank=0, world=1) for index in batch
    ]
    at = joined[0][1]["cursor"]
    assert at == 12 * (EVERY + 2)
    assert [len(share) for share in first[:3]] == [6, 6, 4]
    assert first[:2] == [order[at : at + 6], order[at + 12 : at + 18]]
    for number, shares in enumerate(zip(first[2:], second, new, strict=True)):
        begin = at + 24 + 12 * number
        assert [*shares[0], *shares[1], *shares[2]] == order[begin : begin + 12]


def test_all_meet_at_the_next_sync_and_a_new_rank_counts_for_what_it_has_trained() -> None:
    ranks = values(run_ranks(3, partial(regrouped, average=True), (2, 4), False))
    afters = [after for *_, after in ranks]
    assert [(after["step"], after["inner"]) for after in afters] == [(2, 0)] * 3
    common = torch.tensor(ranks[0][1]["common"])
    changes = [torch.tensor(after["own"]) - common for after in afters]
    # It has made 2 of the 6 inner steps.
    mean = (changes[0] + changes[1] + changes[2] / 3) / (1 + 1 + 1 / 3)
    for after in afters:
        assert after["common"] == after["replica"] == afters[0]["common"]
        assert after["common"] == pytest.approx((common + mean).tolist(), abs=1e-6)


def broken_off(where: str, ranks: tuple[int, ...]) -> tuple[dict[str, Any], list[float], int]:
    """The second sync of two ranks does not come to its end, and then there are three.

    Args:
        where: ``exchange`` or ``commit``.
        ranks: the commit is broken off before it is made here; on others right after that.

    Returns:
        Where this rank is when the second world begins, its replica before the first one ended,
        and how many inner steps its parameters have counted for since the last sync.
    """
    launcher = Launcher(worlds=2)
    rank = int(os.environ["RANK"])
    job = Job(average=True)
    job.state.seen = 0

    def first_world(world: World) -> None:
        for _ in range(5):
            job.state.seen += 1
            job.step(world)
        job.state.seen += 1
        if where == "exchange":
            broken = mock.patch.object(job.diloco._replica, "land", side_effect=Broken)
        elif rank in ranks:
            broken = mock.patch.object(type(job.state), "_advance", side_effect=Broken)
        else:
            broken = mock.patch.object(job.state, "_on_commit", side_effect=Broken)
        with broken:
            job.step(world)

    if rank < 2:
        with pytest.raises(Broken):
            launcher.run(first_world, job.state, size=2)
    own = row(job.replica)
    begin = launcher.run(lambda world: snapshot(job), job.state, world=1, size=3)
    return begin, own, job.diloco._replica._work[0]


def test_a_sync_that_was_broken_off_is_made_as_soon_as_all_are_there() -> None:
    ranks = values(run_ranks(3, broken_off, "exchange", ()))
    mean = [(a + b) / 2 for a, b in zip(ranks[0][1], ranks[1][1], strict=True)]
    for begin, *_ in ranks:
        assert (begin["step"], begin["inner"], begin["seen"]) == (2, 0, 6)
        assert begin["common"] == begin["replica"] == ranks[0][0]["common"]
        assert begin["common"] == pytest.approx(mean, abs=1e-6), "the new rank counts nothing"


@pytest.mark.parametrize("ranks", [(), (0,), (1,)])
def test_a_commit_that_was_broken_off_is_done_when_the_next_world_begins(
    ranks: tuple[int, ...],
) -> None:
    found = values(run_ranks(3, broken_off, "commit", ranks))
    mean = [(a + b) / 2 for a, b in zip(found[0][1], found[1][1], strict=True)]
    for begin, _, work in found:
        assert (begin["step"], begin["inner"], begin["seen"], work) == (2, 0, 6, 0)
        assert begin["replica"] == begin["common"]
        assert begin["common"] == pytest.approx(mean, abs=1e-6)


def goes_on() -> tuple[list[bool], list[int], float]:
    """The commit of the first sync ends a world; the next one has one rank more.

    Returns:
        What ``step`` says in the second world, the number of gradients that the replica has at its
        beginning, and the learning rate of the outer optimizer at its end.
    """
    launcher = Launcher(worlds=2)
    rank = int(os.environ["RANK"])
    job = Job(parts={})
    outer = job.diloco._outer
    left: list[int] = []

    def step(world: World) -> bool:
        synced = job.step(world)
        if synced:
            outer.param_groups[0]["lr"] *= 0.5  # as a scheduler does, after the commit
        return synced

    def first_world(world: World) -> None:
        for _ in range(3):
            step(world)
        for _ in range(2):
            step(world)
        with mock.patch.object(job.state, "_on_commit", side_effect=Broken):
            step(world)

    def second_world(world: World) -> list[bool]:
        left.append(sum(each.grad is not None for each in job.replica.parameters()))
        return [step(world) for _ in range(3)]

    if rank < 2:
        with pytest.raises(Broken):
            launcher.run(first_world, job.state, size=2)
    said: list[bool] = launcher.run(second_world, job.state, world=1, size=3)
    return said, left, outer.param_groups[0]["lr"]


def test_a_sync_at_which_the_world_changes_is_told_by_the_next_step() -> None:
    # The third sync is one inner step after the second was told, and is told at once.
    for said, left, rate in values(run_ranks(3, goes_on)):
        assert said == [True, False, True]
        assert left == [0]
        assert rate == pytest.approx(0.7 / 8)
