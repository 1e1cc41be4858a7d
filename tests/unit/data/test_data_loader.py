"""``elastic.DataLoader``: pieces of steps, what they count, and how a loop goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from elastic_runtime.data import data_loader
from elastic_runtime.data import steps as steps_module
from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.data.kept_loader import KeptLoader
from elastic_runtime.data.sample_seeds import sample_rng
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.worker.loop_hints import LOOPS_IN_A_ROW
from elastic_runtime.worker.peers import GlooGroups
from elastic_runtime.worker.pieces import is_last_piece
from elastic_runtime.worker.round_breaks import begin_break, end_break
from tests.ranks import run_ranks, values
from tests.unit.data.play import world_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.data.steps import TrainingStep
    from elastic_runtime.events.state_events import StepPieces


class Ended(BaseException):
    """``train`` is left."""


@dataclass
class Job:
    """A State as loaders see it."""

    step: int = 0
    stopped: bool = False
    call: int = 1
    is_entrusted: bool = False
    needs_two: bool = False
    scalers: list[torch.amp.GradScaler] = field(default_factory=list)

    def end_training(self) -> None:
        raise Ended

    def commit(self, *loaders: DataLoader, optimized: bool = True) -> None:
        """As ``state.commit()`` after an optimizer."""
        for loader in loaders:
            loader.before_commit(optimized=optimized)
        for loader in loaders:
            loader.commit()
        self.step += 1


def made(
    size: int, batch: int, *, rank: int = 0, world: int = 1, job: Job | None = None, **options: Any
) -> DataLoader:
    """A loader over 0, 1, 2, …, as one rank of a world has it."""
    loader = DataLoader(torch.arange(size), batch, **options)
    loader.enter(world_of(rank, world))
    if job is not None:
        loader.belong_to(job)  # type: ignore[arg-type]
    return loader


def in_state(size: int, batch: int, **options: Any) -> tuple[DataLoader, Job]:
    job = Job()
    return made(size, batch, job=job, **options), job


def samples(step: TrainingStep) -> list[int]:
    """Those that count."""
    return [n for piece in step if step.weight for n in piece.tolist()]


def place(loader: DataLoader) -> tuple[int, int]:
    return loader.epoch, loader.cursor


# Pieces


@dataclass(frozen=True)
class Cut:
    size: int
    batch: int
    world: int
    at_once: int | None
    drop_last: bool

    def loader(self, rank: int, **options: Any) -> DataLoader:
        settings = {"at_once": self.at_once, "drop_last": self.drop_last, **options}
        return made(self.size, self.batch, rank=rank, world=self.world, **settings)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    size = draw(st.integers(1, 40))
    drop_last = draw(st.booleans())
    batch = draw(st.integers(1, size if drop_last else 50))
    return Cut(size, batch, draw(st.integers(1, 6)), draw(st.none() | st.integers(1, 9)), drop_last)


@given(cuts())
def test_pieces_of_all_ranks_make_up_the_global_batches_and_the_mean_over_them(cut: Cut) -> None:
    alone = list(ElasticBatchSampler(cut.size, cut.batch, drop_last=cut.drop_last, rank=0, world=1))
    ranks = [cut.loader(rank) for rank in range(cut.world)]
    seen = 0
    for expected, parts in zip(
        alone, zip(*(r.steps(epochs=1) for r in ranks), strict=True), strict=True
    ):
        numbers = {part.pieces for part in parts}
        largest = math.ceil(len(expected) / cut.world)
        assert numbers == {math.ceil(largest / (cut.at_once or largest))}
        counted, weights, mean = [], 0.0, 0.0
        for part in parts:
            sizes = []
            for piece in part:
                assert 1 <= len(piece) <= (cut.at_once or cut.batch)
                assert set(piece.tolist()) <= set(expected)
                counted += piece.tolist() if part.weight else []
                sizes.append(len(piece) if part.weight else 0)
                weights += part.weight
                mean += part.weight * piece.double().mean().item() / cut.world
            assert max(sizes) - min(sizes) <= 1
        assert counted == expected
        assert weights == pytest.approx(cut.world)
        assert mean == pytest.approx(sum(expected) / len(expected))
        assert {part.samples for part in parts} == {len(expected)}
        seen += 1
        assert {part.last_of_epoch for part in parts} == {seen == len(alone)}
    assert {place(rank) for rank in ranks} == {(1, 0)}
    assert {len(rank) for rank in ranks} == {len(alone)}


@given(cuts(), st.data())
def test_the_sampler_says_the_same_of_pieces_as_the_steps(cut: Cut, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, cut.world - 1))
    loader = cut.loader(rank)
    sampler = loader.batch_sampler
    assert len(sampler) == len(list(sampler)) == sampler.epoch_length
    for step in loader.steps(epochs=1):
        assert sampler.pieces_in(step.samples) == step.pieces
        weights = [step.weight for _ in step]
        assert step.weights == weights


def test_a_share_is_cut_evenly() -> None:
    step = next(made(22, 22, at_once=8).steps())
    assert [len(piece) for piece in step] == [8, 7, 7]


def test_a_rank_without_samples_takes_one_of_another_that_counts_nothing() -> None:
    step = next(made(3, 2, rank=2, world=3, shuffle=False, at_once=1).steps())
    assert [(piece.tolist(), step.weight) for piece in step] == [([0], 0.0)]


# Bounds, positions and ends


def test_steps_go_on_over_ends_of_epochs_from_the_last_commit() -> None:
    loader, job = in_state(10, 4, at_once=3)
    seen = []
    for step in loader.steps(epochs=2):
        seen.append((step.number, step.epoch, step.last_of_epoch, step.samples, step.pieces))
        samples(step)
        job.commit(loader)
    assert seen == [
        (1, 0, False, 4, 2),
        (2, 0, False, 4, 2),
        (3, 0, True, 2, 1),
        (4, 1, False, 4, 2),
        (5, 1, False, 4, 2),
        (6, 1, True, 2, 1),
    ]
    assert place(loader) == (2, 0)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"epochs": 1}, 3),
        ({"steps": 5}, 5),
        ({"epochs": 1, "steps": 5}, 3),
        ({"epochs": 5, "steps": 5}, 5),
        ({"epochs": 0}, 0),
        ({"steps": 0}, 0),
    ],
)
@pytest.mark.parametrize("in_a_state", [True, False])
def test_whichever_bound_comes_first_ends_it(
    bounds: dict[str, int], expected: int, in_a_state: bool
) -> None:
    job = Job()
    loader = made(10, 4, job=job if in_a_state else None)
    numbers = []
    for step in loader.steps(**bounds):
        numbers.append(step.number)
        if in_a_state:
            samples(step)
            job.commit(loader)
    assert numbers == list(range(1, expected + 1))


def test_bounds_are_about_the_whole_training() -> None:
    loader, job = in_state(12, 4)
    for step in loader.steps(steps=2):
        samples(step)
        job.commit(loader)
    job.call += 1  # the world has changed
    assert [step.number for step in loader.steps(steps=2)] == []
    job.call += 1
    assert next(loader.steps(epochs=1)).number == 3


@pytest.mark.parametrize("bound", [-1, 1.5, True, "2"])
@pytest.mark.parametrize("name", ["epochs", "steps"])
def test_a_bound_is_a_whole_number(name: str, bound: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}=.*give a whole number"):
        made(4, 2).steps(**{name: bound})


def test_the_same_bound_twice_is_refused_as_nothing_would_follow() -> None:
    loader, job = in_state(4, 2)
    for step in loader.steps(epochs=1):
        samples(step)
        job.commit(loader)
    with pytest.raises(UsageError, match=r"asked for twice.*state.at\('epoch'"):
        loader.steps(epochs=1)
    loader.steps(epochs=2)
    job.call += 1
    loader.steps(epochs=2)


def test_a_stop_ends_it_and_a_loop_around_it_as_well() -> None:
    loader, job = in_state(8, 2)
    numbers = []
    for step in loader.steps():
        numbers.append(step.number)
        samples(step)
        job.commit(loader)
        job.stopped = len(numbers) == 2
    assert numbers == [1, 2]
    with pytest.raises(Ended):
        loader.steps(epochs=5)
    job.call += 1
    assert list(loader.steps(epochs=5)) == []
    with pytest.raises(Ended):
        loader.steps(epochs=6)


def test_a_new_iteration_begins_at_the_last_commit_and_forgets_what_was_begun() -> None:
    loader, job = in_state(8, 2, shuffle=False)
    first = loader.steps()
    assert samples(next(first)) == [0, 1]
    assert samples(next(first)) == [2, 3]
    assert samples(next(loader.steps())) == [0, 1]
    with pytest.raises(UsageError, match="begun before another one"):
        next(first)
    job.commit(loader)
    assert place(loader) == (0, 2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_commit_moves_by_the_steps_begun_also_over_the_end_of_an_epoch(num_workers: int) -> None:
    loader, job = in_state(6, 2, shuffle=False, num_workers=num_workers)
    seen, places = [], []
    for step in loader.steps(epochs=2):
        seen.append(samples(step))
        if len(seen) % 2 == 0:
            job.commit(loader)
            places.append(place(loader))
    assert seen == [[0, 1], [2, 3], [4, 5]] * 2
    assert places == [(0, 4), (1, 2), (2, 0)]
    loader.commit()
    assert place(loader) == (2, 0)


def test_loaders_move_apart_only_by_what_each_has_given() -> None:
    job = Job()
    one, two, idle = (made(8, batch, job=job) for batch in (2, 4, 2))
    for first, second in zip(one.steps(steps=2), two.steps(steps=2), strict=True):
        samples(first)
        samples(second)
        job.commit(one, two, idle)
    assert [place(loader) for loader in (one, two, idle)] == [(0, 4), (1, 0), (0, 0)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pieces_that_were_left_are_dropped(num_workers: int) -> None:
    loader, job = in_state(12, 4, at_once=2, shuffle=False, num_workers=num_workers)
    seen = []
    for step in loader.steps(epochs=1):
        for piece in step:
            seen.append(piece.tolist())
            if step.number == 2:
                break
        job.commit(loader, optimized=False)
    assert seen == [[0, 1], [2, 3], [4, 5], [8, 9], [10, 11]]


def test_a_step_that_is_over_takes_nothing_of_the_next_one() -> None:
    loader = made(8, 4, at_once=2)
    iteration = loader.steps()
    old = next(iteration)
    pieces = iter(old)
    next(pieces)
    new = next(iteration)
    with pytest.raises(UsageError, match="step 1 is over"):
        next(pieces)
    assert len(samples(new)) == 4
    later = next(loader.steps())
    next(loader.steps())
    with pytest.raises(UsageError, match="step 1 is over"):
        later.total(len)


def test_in_no_state_a_step_counts_when_the_next_one_is_asked_for() -> None:
    loader = made(6, 2)
    iteration = loader.steps(steps=3)
    numbers, places = [], []
    for step in iteration:
        numbers.append(step.number)
        places.append(place(loader))
    assert numbers == [1, 2, 3]
    assert places == [(0, 0), (0, 2), (0, 4)]
    assert place(loader) == (1, 0)


def test_it_knows_whether_the_script_is_in_the_middle() -> None:
    loader, _ = in_state(8, 4, at_once=2)
    iteration = loader.steps()
    seen = [loader.iterates]
    next(iteration)
    seen.append(loader.iterates)
    iteration.close()  # type: ignore[attr-defined]
    seen.append(loader.iterates)
    loader.load_state_dict(loader.state_dict())
    assert [*seen, loader.iterates] == [False, True, False, False]


def test_a_position_is_saved_and_voids_what_was_begun() -> None:
    loader, job = in_state(8, 2, seed=3)
    for step in loader.steps(steps=2):
        samples(step)
        job.commit(loader)
    state = loader.state_dict()
    other = made(8, 2, job=Job(), seed=4)
    begun = other.steps()
    next(begun)
    other.load_state_dict(state)
    with pytest.raises(UsageError, match="a position was loaded"):
        next(begun)
    other.commit()
    assert other.state_dict() == state
    assert samples(next(other.steps())) == samples(next(loader.steps()))


def test_it_knows_how_many_steps_an_epoch_has_and_how_many_are_left() -> None:
    loader, job = in_state(10, 4, at_once=1)
    found = []
    for step in loader.steps(epochs=1):
        found.append((len(loader), loader.remaining))
        samples(step)
        job.commit(loader)
    assert found == [(3, 3), (3, 2), (3, 1)]
    dropping = made(10, 4, drop_last=True)
    assert (len(dropping), dropping.remaining) == (2, 2)


# What counts


def test_gradients_that_were_not_weighed_are_refused_in_every_world() -> None:
    for weigh, right in {
        lambda step, loss: step.backward(loss): True,
        lambda step, loss: (loss * step.weight).backward(): True,
        lambda step, loss: loss.backward(): False,
    }.items():
        loader, job = in_state(4, 4, at_once=2)
        step = next(loader.steps())
        parameter = torch.ones(1, requires_grad=True)
        for piece in step:
            weigh(step, (parameter * piece).mean())
        if right:
            job.commit(loader)
            continue
        with pytest.raises(UsageError, match=r"step 1 were not weighed.*step\.backward\(loss\)"):
            job.commit(loader)
        job.commit(loader, optimized=False)


@pytest.mark.parametrize("left_out", [0, 1])
def test_each_piece_is_weighed(left_out: int) -> None:
    loader, job = in_state(4, 4, at_once=2)
    step = next(loader.steps())
    parameter = torch.ones(1, requires_grad=True)
    for number, piece in enumerate(step):
        loss = (parameter * piece).mean()
        if number == left_out:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            step.backward(loss)
    with pytest.raises(UsageError, match=f"piece {left_out + 1} of 2 of step 1 were not weighed"):
        job.commit(loader)


def test_what_a_scaler_has_scaled_is_no_part_of_the_mean_loss() -> None:
    loader, job = in_state(4, 4, at_once=2, shuffle=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    job.scalers.append(scaler)
    parameter = torch.ones(1, requires_grad=True)
    step = next(loader.steps())
    for piece in step:
        step.backward(scaler.scale((parameter * piece).mean()))
    scaler.update(2.0)  # even where it comes too early
    assert step.mean_loss() == pytest.approx(1.5)
    assert parameter.grad is not None
    assert parameter.grad.item() == pytest.approx(1.5 * 1024)
    job.scalers.append(torch.amp.GradScaler("cpu"))
    with pytest.raises(UsageError, match="several GradScalers"):
        step.mean_loss()


def test_a_mean_loss_needs_losses() -> None:
    loader, _ = in_state(4, 4)
    step = next(loader.steps())
    for piece in step:
        (torch.ones(1, requires_grad=True) * piece * step.weight).sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match=r"given nothing: call that instead"):
        step.mean_loss()


def test_a_position_has_the_batch_of_its_last_commit() -> None:
    giving, job = in_state(16, 4)
    giving.global_batch_size = 8  # as a script may do in train, by the size of the world
    next(giving.steps())
    job.commit(giving)
    taking, _ = in_state(16, 4)
    taking.load_state_dict(giving.state_dict())
    assert taking.state_dict() == giving.state_dict()
    assert taking.global_batch_size == 4


def test_the_same_bound_may_be_asked_for_after_another_position() -> None:
    loader, job = in_state(8, 2)
    numbers = []
    for step in loader.steps(epochs=2):
        numbers.append(step.epoch)
        job.commit(loader)
        if loader.cursor == 4:
            loader.go_to(1)
            break
    numbers += [step.epoch for step in loader.steps(epochs=2)]
    assert numbers == [0, 0, 1, 1, 1, 1]


def test_a_loop_for_each_epoch_is_told_what_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(steps_module, "tell_once", lambda hint, **words: told.append(hint))
    loader, job = in_state(4, 2)

    def train() -> None:
        for epoch in range(2):
            for _ in loader.steps(epochs=epoch + 1):
                job.commit(loader)

    train()
    assert told == []
    loader.go_to(1)
    job.call = 2
    train()
    assert told == [LOOPS_IN_A_ROW]
    job.call, told[:] = 3, []
    train()  # nothing is left at all
    assert told == []


def test_a_total_weighs_nothing() -> None:
    loader, job = in_state(4, 4, at_once=2)
    step = next(loader.steps())
    step.total(len)
    list(step)
    with pytest.raises(UsageError, match=r"step\.backward\(loss / total, reduction='sum'\)"):
        job.commit(loader)


def test_a_step_without_pieces_taken_need_not_be_weighed() -> None:
    loader, job = in_state(4, 2)
    next(loader.steps())
    job.commit(loader)
    assert place(loader) == (0, 2)


def test_an_optimizer_waits_for_the_last_piece() -> None:
    loader, _ = in_state(4, 4, at_once=2)
    step = next(loader.steps())
    loader.before_optimizer()
    for number, _ in enumerate(step, 1):
        if number == 1:
            with pytest.raises(UsageError, match="after piece 1 of 2"):
                loader.before_optimizer()
        else:
            loader.before_optimizer()
    loader.before_optimizer()


def test_a_weight_belongs_to_a_piece_and_pieces_come_once() -> None:
    step = next(made(4, 4).steps())
    for ask in (lambda: step.weight, lambda: step.backward(torch.ones(()))):
        with pytest.raises(UsageError, match="no piece of step 1 was taken"):
            ask()
    list(step)
    assert step.weight == 1.0
    with pytest.raises(UsageError, match="were given already"):
        iter(step)


def test_gradients_are_those_of_the_mean_over_the_global_batch() -> None:
    """Of a rank, times the number of ranks: DDP divides by it."""
    expected = torch.arange(10.0).mean()
    gradients = torch.zeros(())
    for rank in range(3):
        parameter = torch.ones((), requires_grad=True)
        step = next(made(10, 10, rank=rank, world=3, at_once=2).steps())
        for piece in step:
            step.backward((parameter * piece).mean())
        assert parameter.grad is not None
        gradients += parameter.grad / 3
    assert gradients.item() == pytest.approx(expected.item())


def test_a_sum_that_was_divided_by_a_total_counts_as_it_is() -> None:
    gradients = torch.zeros(())
    for rank in range(4):  # the last one has no sample
        parameter = torch.ones((), requires_grad=True)
        step = next(made(3, 3, rank=rank, world=4).steps())
        for piece in step:
            step.backward((parameter * piece).sum() / 3, reduction="sum")
        assert parameter.grad is not None
        gradients += parameter.grad / 4
    assert gradients.item() == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [1.0, torch.ones(2)])
def test_a_loss_is_one_number(loss: Any) -> None:
    step = next(made(4, 4).steps())
    for _ in step:
        with pytest.raises(UsageError, match="loss of a piece as one number"):
            step.backward(loss)
        with pytest.raises(UsageError, match="'mean' or 'sum'"):
            step.backward(torch.ones(()), reduction="none")


def test_a_total_is_over_all_pieces_that_count_and_they_still_come() -> None:
    loader, _ = in_state(6, 6, at_once=2, shuffle=False)
    step = next(loader.steps())
    totals = [step.total(len), step.total(lambda p: p.sum()), step.total(lambda p: 0.5)]
    assert totals == [6, 15, 1.5]
    assert [type(total) for total in totals] == [int, int, float]
    assert [piece.tolist() for piece in step] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(UsageError, match="before the first one"):
        step.total(len)


@pytest.mark.parametrize(
    ("size", "options", "most", "told"),
    [
        (64, {}, 4, None),
        (65, {}, 4, (1, 1)),
        (67, {}, 2, (3, 2)),
        (67, {}, 1, None),
        (65, {"drop_last": True}, 4, None),
        (64, {"at_once": 1}, 1, (8, 1)),
        (64, {}, 5, (8, 5)),
    ],
)
def test_who_cannot_train_with_one_sample_hears_of_it_before_that_world_comes(
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    options: dict[str, Any],
    most: int,
    told: tuple[int, int] | None,
) -> None:
    hints: list[dict[str, Any]] = []
    monkeypatch.setenv("ELASTIC_MOST_WORKERS", str(most))
    monkeypatch.setattr(data_loader, "tell_once", lambda hint, **words: hints.append(words))
    for needs_two in (False, True):
        next(made(size, 8, job=Job(needs_two=needs_two), **options).steps())
    assert hints == ([{"samples": told[0], "world": told[1]}] if told else [])


def test_where_ranks_train_alone_a_total_is_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = made(6, 6, world=2, job=Job(is_entrusted=True), shuffle=False)
    monkeypatch.setattr(loader, "peers", None)  # nobody is asked
    step = next(loader.steps())
    weight = torch.ones((), requires_grad=True)
    assert step.total(len) == 3
    for piece in step:
        step.backward(weight * piece.sum() / 3, reduction="sum")
    assert weight.grad == 1.0


def test_a_total_may_be_a_number_of_another_library() -> None:
    step = next(made(6, 6, at_once=2, shuffle=False).steps())
    found = [step.total(lambda p: p.numpy().sum()), step.total(lambda p: p.float().numpy().sum())]
    assert found == [15, 15.0]
    assert [type(one) for one in found] == [int, float]


def totals(size: int) -> tuple[Any, ...]:
    """What ranks get for the number of samples and their sum, which is more than one has."""
    loader = DataLoader(torch.arange(size), size, at_once=2)
    step = next(loader.steps())
    return step.total(len), step.total(lambda piece: piece.sum() / 2), len(list(step))


@pytest.mark.parametrize("size", [7, 2])
def test_a_total_is_over_all_ranks(size: int) -> None:
    found = values(run_ranks(3, totals, size))
    assert found == [(size, sum(range(size)) / 2, math.ceil(math.ceil(size / 3) / 2))] * 3


def mean_losses(size: int) -> tuple[float, float, str]:
    """The mean of the losses of all samples, given by pieces as means, and as sums."""
    found = []
    for reduction in ("mean", "sum"):
        step = next(DataLoader(torch.arange(float(size)), size, at_once=2).steps())
        weight = torch.ones((), requires_grad=True)
        for piece in step:
            loss = weight * piece.square()
            step.backward(
                loss.mean() if reduction == "mean" else loss.sum() / size, reduction=reduction
            )
        found.append(step.mean_loss())
    early = next(DataLoader(torch.arange(float(size)), size, at_once=1).steps())
    with pytest.raises(UsageError) as refused:
        early.mean_loss()
    return found[0], found[1], str(refused.value)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("size", [7, 2])
def test_the_mean_loss_of_a_step_is_that_of_the_global_batch(world: int, size: int) -> None:
    mean = sum(n * n for n in range(size)) / size
    for by_means, by_sums, early in values(run_ranks(world, mean_losses, size)):
        assert (by_means, by_sums) == (pytest.approx(mean), pytest.approx(mean))
        assert "of all pieces" in early


def shared_totals() -> tuple[Any, ...]:
    """Ranks 0 and 1 train on the same share, as under tensor parallelism."""
    rank = dist.get_rank()
    loader = DataLoader(torch.arange(7), 7, shuffle=False, rank=rank // 2, world=2)
    loader.enter(world_of(rank, 4))
    step = next(loader.steps())
    return step.total(len), [piece.tolist() for piece in step], step.weight


def test_several_ranks_may_take_the_same_share() -> None:
    first, second = (7, [[0, 1, 2, 3]], 8 / 7), (7, [[4, 5, 6]], 6 / 7)
    assert values(run_ranks(4, shared_totals)) == [first, first, second, second]


OTHERS: dict[str, dict[str, Any]] = {
    "global_batch_size": {"global_batch_size": 2},
    "at_once": {"at_once": 1},
    "drop_last": {"drop_last": True},
    "number of samples": {"data": torch.arange(9)},
    "order of samples": {"seed": 2},
    "epoch": {"seed": 0},
}


def other_settings(name: str) -> str:
    """What is said where rank 1 has made its loader otherwise."""
    other = OTHERS[name] if dist.get_rank() == 1 else {}
    settings = {"data": torch.arange(8), "global_batch_size": 4, **other}
    loader = DataLoader(settings.pop("data"), **settings)
    if name == "epoch" and other:
        loader.go_to(1)
    loader.belong_to(Job())
    loader.use_groups(GlooGroups(dist.group.WORLD, dist.new_group, lambda: False))
    try:
        next(loader.steps())
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", OTHERS)
def test_loaders_that_ranks_have_made_otherwise_are_refused(name: str) -> None:
    one, other = values(run_ranks(2, other_settings, name))
    assert one == other
    assert f"differ in {name}" in one
    assert "on rank 1" in one


def test_a_share_of_one_world_is_refused_in_place() -> None:
    loader = DataLoader(torch.arange(8), 4, rank=0, world=2)
    with context().running_in_place(), pytest.raises(UsageError, match="rank=0, world=2 are of"):
        loader.enter(world_of(0, 2))


def test_gradients_are_reduced_with_the_last_piece() -> None:
    loader, _ = in_state(8, 4, at_once=2)
    seen = [is_last_piece()]
    for step in loader.steps(steps=2):
        for _ in step:
            seen.append(is_last_piece())
            if step.number == 2:
                break
        seen.append(is_last_piece())
    assert seen == [True, False, True, True, False, True]


def test_people_are_told_how_steps_are_cut_and_when_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[StepPieces] = []
    monkeypatch.setattr(steps_module.context(), "note", told.append)
    monkeypatch.setattr(context(), "rank", 0)
    job = Job()
    loader, other = made(128, 64, job=job, at_once=8), made(64, 3, job=job)
    for one, two in zip(loader.steps(), other.steps(steps=4), strict=False):
        samples(one)
        samples(two)
        job.commit(loader, other)
    for world in (4, 4, 8, 3):
        loader.enter(world_of(0, world))
        next(loader.steps())
    assert [event.message() for event in told] == [
        "a step has 64 samples: 1 worker, 8 at once each, in 8 pieces",
        "a step has 3 samples: 1 worker, 3 each",
        "a step has 64 samples: 4 workers, 8 at once each, in 2 pieces",
        "a step has 64 samples: 8 workers, 8 each",
        "a step has 64 samples: 3 workers, up to 8 at once each, in 3 pieces",
    ]


# Its processes, and numbers of chance


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_taken_from_the_global_generator(num_workers: int) -> None:
    before = torch.get_rng_state()
    loader = made(12, 4, num_workers=num_workers, at_once=2)
    for step in loader.steps(epochs=2):
        samples(step)
    for _ in loader:
        pass
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_processes_give_the_same_steps(num_workers: int) -> None:
    loader = made(10, 4, seed=2, at_once=3, num_workers=num_workers)
    assert isinstance(loader._loader, KeptLoader) == bool(num_workers)
    expected = []
    sampler = ElasticBatchSampler(10, 4, seed=2, rank=0, world=1)
    for sampler.epoch in (0, 1):
        expected += list(sampler)
    assert [samples(step) for step in loader.steps(epochs=2)] == expected


def test_pieces_are_read_ahead_of_the_next_round() -> None:
    loader, job = in_state(24, 6, at_once=2, shuffle=False, num_workers=1)
    for step in loader.steps(steps=1):
        samples(step)
        job.commit(loader)
    begin_break()
    end_break(1, 2)
    job.call += 1
    loader.enter(world_of(1, 2))
    kept = loader._loader
    assert isinstance(kept, KeptLoader)
    assert kept._elastic_done is not None
    assert kept._elastic_done.wait(30)
    assert kept._elastic_ahead is not None
    begun = kept._elastic_ahead[2]
    step = next(loader.steps())
    assert step._batches is begun
    assert [piece.tolist() for piece in step] == [[9, 10], [11]]


# Iterated directly


@given(cuts(), st.booleans())
def test_without_a_state_each_sample_comes_once_over_all_ranks(cut: Cut, backwards: bool) -> None:
    order = (lambda epoch, rng: list(reversed(range(cut.size)))) if backwards else None
    seen = []
    for rank in range(cut.world):
        for batch in cut.loader(rank, order=order):
            assert 1 <= len(batch) <= (cut.at_once or math.ceil(cut.batch / cut.world))
            seen += batch.tolist()
    assert seen == sorted(range(cut.size), reverse=backwards)


class Noisy(Dataset[float]):
    """Samples that are made by chance."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return torch.rand((), generator=sample_rng(index)).item()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_validation_uses_the_processes_that_there_are(num_workers: int) -> None:
    loader = DataLoader(Noisy(), 4, seed=5, num_workers=num_workers)
    expected = [torch.rand((), generator=sample_rng(n, seed=5, epoch=0)).item() for n in range(8)]
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == pytest.approx(expected)
    begun = loader.steps()
    next(begun)
    list(loader)
    with pytest.raises(UsageError, match="begun before"):
        next(begun)


def test_in_a_state_it_gives_steps_only() -> None:
    loader, _ = in_state(4, 2)
    with pytest.raises(UsageError, match=r"loader\.steps\(epochs=...\)"):
        iter(loader)


# What it refuses


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Sizeless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


DATA = torch.arange(4)


def test_a_collection_of_data_sets_is_none() -> None:
    with pytest.raises(UsageError, match="a dict has no numbered samples but 'train', 'test'"):
        DataLoader({"train": DATA, "test": DATA}, 2)
    assert len(DataLoader({0: 1.0, 1: 2.0}, 2)) == 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DataLoader(Endless(), 2), "Endless has no .*elastic.ShardedStream"),
        (lambda: DataLoader(Sizeless(), 2), "Sizeless has no .*elastic.ShardedStream"),
        (lambda: DataLoader(4, 2), "int has no .*elastic.ShardedStream"),
        (lambda: DataLoader([], 2), "is empty"),
        (lambda: DataLoader(DATA, 0), "global_batch_size=0: give a whole number"),
        (lambda: DataLoader(DATA, 2.0), "global_batch_size=2.0: give"),  # type: ignore[arg-type]
        (lambda: DataLoader(DATA, True), "global_batch_size=True: give"),
        (lambda: DataLoader(DATA, 2, at_once=0), "at_once=0: give a whole number"),
        (lambda: DataLoader(DATA, 2, replacement=True), "about an order= of your own"),
        (lambda: DataLoader(DATA, 2, shuffle=False, replacement=True), "about an order= of your"),
        (lambda: DataLoader(DATA, 5, drop_last=True), "drop_last leaves nothing"),
        (lambda: DataLoader(DATA, 5, drop_last=True, shuffle=False), "drop_last leaves nothing"),
        (lambda: DataLoader(DATA, 2, batch_size=2), "decides on batch_size"),
        (lambda: DataLoader(DATA, 2, sampler=[0]), "decides on sampler"),
        (lambda: DataLoader(DATA, 2, batch_sampler=[[0]]), "decides on batch_sampler"),
        (lambda: DataLoader(DATA, 2, persistent_workers=True), "decides on persistent_workers"),
        (lambda: DataLoader(DATA, 2, generator=torch.Generator()), "decides on generator"),
        (lambda: DataLoader(DATA, 2, in_order=False), "in_order=False"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_a_world_of_one_needs_no_group() -> None:
    assert not dist.is_initialized()
    assert next(made(4, 4).steps()).total(len) == 4
