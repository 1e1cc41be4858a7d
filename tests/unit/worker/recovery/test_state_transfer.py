"""Ranks with different states are brought together: real processes, real gloo."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_runtime.worker.recovery import state_transfer
from elastic_runtime.worker.recovery.recovery_source import (
    NOTHING,
    MemoryCondition,
    RankStatus,
    StateVersion,
    choose,
)
from elastic_runtime.worker.recovery.state_transfer import (
    Restorer,
    bring_together,
    neighbours,
    plan,
)
from elastic_runtime.worker.state.training_state import State
from tests.ranks import kill_self, run_ranks, values
from tests.unit.worker.state.small_job import Job

if TYPE_CHECKING:
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice


class Doomed:
    """A wire whose owner is killed before it sends its third message."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._left = 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def send(self, *args: Any) -> Any:
        if not self._left:
            kill_self()
        self._left -= 1
        work = self._wire.send(*args)
        work.wait()
        return work


def wire() -> Any:
    """A gloo of their own for the ranks of a test."""
    store = dist.PrefixStore("sync", dist.distributed_c10d._get_default_store())
    ranks = dist.get_rank(), dist.get_world_size()
    return dist.ProcessGroupGloo(store, *ranks, timedelta(seconds=20))


def nothing_to_load(over: StateVersion | None) -> StateVersion | None:
    raise AssertionError("asked in vain")


def together(
    state: State, *, saver: Restorer | None = None, doomed: bool = False
) -> RecoveryChoice:
    """Brings the ranks of a test together, over a gloo of their own."""
    rank, world, line = dist.get_rank(), dist.get_world_size(), wire()
    state_transfer.MESSAGE_BYTES = 64  # so that a small model takes several messages of both kinds
    return bring_together(state, Doomed(line) if doomed else line, rank, world, saver)


def job_at(step: int, **options: Any) -> Job:
    """A job with so many commits; they are alike in every process."""
    random.seed(0)
    job = Job(**options).start()
    for _ in range(step):
        job.step()
    return job


def broken(word: str) -> Job:
    """A job after a fault, from a word such as ``new``, ``3clean``, ``2finished``."""
    number = "".join(filter(str.isdigit, word))
    condition = word.removeprefix(number)
    if condition == "new":
        return Job(seed=dist.get_rank() + 1)
    job = job_at(int(number))
    job.committed = job.values()
    job.forward()
    if condition == "finished":
        job.optim.step()
        job.scheduler.step()
    if condition == "dirty":
        job.state.give_up(int(number))
    return job


def meet(*words: str) -> tuple[RecoveryChoice, RankStatus, str, str, str]:
    """Brings ranks together.

    Returns:
        What was chosen, where this rank stands, what it held before, what it holds now, and what
        it had committed.
    """
    word = words[dist.get_rank()]
    job = broken(word)
    before = job.values()
    choice = together(job.state)
    return choice, job.state.rank_status(), before, job.values(), job.committed


@pytest.mark.parametrize(
    ("words", "step", "sources"),
    [
        ("3clean new", 3, (0,)),
        ("new 3clean", 3, (1,)),
        ("2clean 3clean", 3, (1,)),
        ("3clean 3clean", 3, (0, 1)),
        ("3clean new 3clean 2clean", 3, (0, 2)),
        ("new 3clean 2clean 3dirty", 3, (1,)),
        ("3finished 3dirty new", 4, (0,)),
    ],
)
def test_all_get_exactly_what_the_furthest_committed(
    words: str, step: int, sources: tuple[int, ...]
) -> None:
    results = values(run_ranks(len(words.split()), meet, *words.split()))
    for choice, status, *_ in results:
        assert (choice.kind.value, choice.sources) == ("memory", sources)
        assert status == RankStatus(step, MemoryCondition.CLEAN)
    (after,) = {after for _, _, _, after, _ in results}
    if not choice.adopt:
        assert after == results[sources[0]][4]  # to the last bit


def test_an_adopted_step_is_held_by_all() -> None:
    results = values(run_ranks(3, meet, "3finished", "3dirty", "3finished"))
    assert results[0][0].adopt
    assert len({after for *_, after in results}) == 1


def test_without_any_state_all_get_that_of_rank_0() -> None:
    results = values(run_ranks(3, fresh))
    assert len({after for _, _, after in results}) == 1
    assert results[0][1] == results[0][2] != results[1][1]
    assert {choice.kind.value for choice, _, _ in results} == {"fresh"}


def fresh() -> tuple[RecoveryChoice, str, str]:
    job = broken("new")
    before = job.values()
    return together(job.state), before, job.values()


@pytest.mark.parametrize(
    ("words", "kind", "step"),
    [("new new", "saved", 2), ("3dirty 1clean", "saved", 2), ("3dirty 2clean", "memory", 2)],
)
def test_what_only_the_checkpoint_has_is_loaded(words: str, kind: str, step: int) -> None:
    for choice, status, asked, *_ in values(run_ranks(2, ask, *words.split())):
        assert (choice.kind.value, choice.step) == (kind, step)
        assert status == RankStatus(step, MemoryCondition.CLEAN)
        assert asked == [choice.in_memory if kind == "memory" else asked[0]]


def ask(*words: str) -> tuple[RecoveryChoice, RankStatus, list[StateVersion | None], str]:
    """Brings ranks together, with step 2 of term 0 saved."""
    job = broken(words[dist.get_rank()])
    asked: list[StateVersion | None] = []

    def load(over: StateVersion | None) -> StateVersion | None:
        asked.append(over)
        if over is not None and over >= (0, 2):
            return None
        loaded = job_at(2)
        job.state.load(*loaded.state.commit_image())
        return StateVersion(0, 2)

    choice = together(job.state, saver=Restorer(0, NOTHING, load))
    return choice, job.state.rank_status(), asked, job.values()


def test_memory_serves_if_nothing_newer_can_be_loaded() -> None:
    first, second = values(run_ranks(2, ask_in_vain))
    assert first[0].kind.value == "memory"
    assert first[1:] == second[1:] == (RankStatus(3, MemoryCondition.CLEAN), [StateVersion(0, 3)])


def ask_in_vain() -> tuple[RecoveryChoice, RankStatus, list[StateVersion | None]]:
    """A checkpoint that seems to be newer turns out to be damaged."""
    job = job_at(3 - dist.get_rank())
    asked: list[StateVersion | None] = []
    restorer = Restorer(0, NOTHING, lambda over: asked.append(over))
    return together(job.state, saver=restorer), job.state.rank_status(), asked


def test_what_was_damaged_while_it_was_loaded_leaves_no_memory() -> None:
    for choice, asked in values(run_ranks(2, lose_all)):
        assert choice.kind.value == "lost"
        assert asked == [StateVersion(0, 3), None]


def lose_all() -> tuple[RecoveryChoice, list[StateVersion | None]]:
    """The load of a newer checkpoint fails when the memory is overwritten in part."""
    job = job_at(3)
    asked: list[StateVersion | None] = []

    def load(over: StateVersion | None) -> None:
        asked.append(over)
        job.state.give_up(9)

    return together(job.state, saver=Restorer(0, NOTHING, load)), asked


def test_a_newcomer_asks_nothing_if_another_rank_was_there() -> None:
    for choice, status in values(run_ranks(2, join)):
        assert (choice.kind.value, choice.sources) == ("memory", (0,))
        # It is of that history at once: a fault may hit all before any knows that they are alike.
        assert (status.step, status.round) == (2, 6)


def join() -> tuple[RecoveryChoice, RankStatus]:
    """Rank 0 was in round 6; rank 1 is new, and knows of no round."""
    rank = dist.get_rank()
    job = Job(seed=1) if rank else job_at(2)
    job.state._round = 0 if rank else 6
    saver = Restorer(1, StateVersion(1, 0), nothing_to_load)
    choice = bring_together(job.state, wire(), rank, 2, saver, before=-1 if rank else 6)
    return choice, job.state.rank_status()


def test_whoever_was_there_in_the_last_round_needs_not_ask() -> None:
    job = job_at(2)
    job.state._round = 6
    saver = Restorer(1, StateVersion(1, 0), nothing_to_load)
    choice = bring_together(job.state, None, 0, 1, saver, before=6)
    assert (choice.kind.value, choice.in_memory) == ("memory", StateVersion(1, 2))


def test_what_may_differ_between_sources_is_that_of_the_first() -> None:
    results = values(run_ranks(3, differ))
    assert {choice.receivers for choice, *_ in results} == {()}
    assert {after for *_, after in results} == {results[0][1]}
    assert results[1][1] != results[0][1]


def differ() -> tuple[RecoveryChoice, str, str]:
    job = job_at(2)
    job.model[1].running_mean.add_(dist.get_rank())
    job.state.seen += dist.get_rank()
    job.state.remember_commit(2)
    before = job.values()
    return together(job.state), before, job.values()


def test_models_that_differ_are_refused_on_all_ranks_before_anything_moves() -> None:
    for outcome in run_ranks(3, other_models):
        assert outcome.error == "UsageError"
        assert "rank 1: models differ between ranks: model.weight: float32[2, 3]" in outcome.text


def other_models() -> None:
    state = State(model=nn.Linear(2 + (dist.get_rank() == 1), 2))
    if dist.get_rank() == 0:
        state.remember_commit(4)
    together(state)


def test_a_state_that_cannot_be_given_away_is_refused_on_all_ranks() -> None:
    for outcome in run_ranks(2, unsavable):
        assert outcome.error == "UsageError"
        assert "rank 0: thing.function is a builtins.function" in outcome.text


class Thing:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        if self.state.get("fail"):
            raise ValueError("cannot take this")


def unsavable() -> None:
    thing = Thing(function=lambda: 0) if dist.get_rank() == 0 else Thing()
    state = State(thing=thing)
    if dist.get_rank() == 0:
        state.remember_commit(1)
    together(state)


def test_a_rank_that_is_not_alike_afterwards_is_named() -> None:
    outcomes = run_ranks(3, forgetful)
    assert [outcome.error for outcome in outcomes] == ["RanksDiffer"] * 3
    assert "rank 2 holds another state than rank 0" in outcomes[0].text


def forgetful() -> None:
    state = State(thing=Thing(a=dist.get_rank() // 2))
    if dist.get_rank() == 0:
        state.remember_commit(1)
    together(state)


def test_a_failure_to_load_is_that_of_its_rank() -> None:
    outcomes = run_ranks(2, failing)
    assert [outcome.error for outcome in outcomes] == ["RanksDiffer", "ValueError"]
    assert outcomes[1].text == "cannot take this"


def failing() -> None:
    state = State(thing=Thing(fail=dist.get_rank() == 1))
    if dist.get_rank() == 0:
        state.remember_commit(1)
    together(state)


def lose_the_source(word: str) -> tuple[RankStatus, bool]:
    """Where the receiver stands after its source was killed, and whether it is as it was."""
    if dist.get_rank() == 0:
        together(job_at(3).state, doomed=True)
    job = broken(word)
    before = job.values()
    with pytest.raises(RuntimeError):
        together(job.state)
    return job.state.rank_status(), job.values() == before


def test_an_older_commit_outlives_a_source_that_is_killed_half_way() -> None:
    source, receiver = run_ranks(2, lose_the_source, "2clean")
    assert source.signal == 9
    assert receiver.value == (RankStatus(2, MemoryCondition.CLEAN), True)


def test_half_a_state_is_never_taken_for_a_whole_one() -> None:
    _, receiver = run_ranks(2, lose_the_source, "new")
    status, untouched = receiver.value
    assert status == RankStatus(3, MemoryCondition.DIRTY)
    assert not untouched  # it was received in place


def test_one_rank_alone_keeps_its_commit() -> None:
    job = job_at(2)
    before = job.values()
    job.forward()
    choice = bring_together(job.state, None, 0, 1)
    assert (choice.kind.value, choice.step) == ("memory", 2)
    assert job.values() == before


def test_every_form_of_tensor_arrives() -> None:
    first, second = values(run_ranks(2, odd_tensors))
    assert first == second


def odd_tensors() -> list[Any]:
    module = nn.Module()
    one = float(dist.get_rank() == 0)
    tensors = {
        "flag": torch.tensor([True, False, True]) * bool(one),
        "empty": torch.ones(0, 3),
        "scalar": torch.tensor(one),
        "other": torch.tensor(-one),
        "wave": torch.full((3, 40), complex(one, 2)),
        "brief": torch.full((100,), one, dtype=torch.bfloat16),
        "images": torch.full((2, 3, 4, 5), one).to(memory_format=torch.channels_last),
        "turned": (torch.arange(60.0) * one).reshape(5, 12).t(),
    }
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            module.register_parameter(name, nn.Parameter(tensor))
        else:
            module.register_buffer(name, tensor)
    state = State(module=module)
    if one:
        state.remember_commit(1)
    together(state)
    return [
        (name, tensor.tolist())
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    ]


@given(st.lists(st.integers(0, 300)), st.integers(8, 100))
def test_a_plan_carries_every_byte_once(sizes: list[int], limit: int) -> None:
    messages = plan(sizes, limit)
    carried = sorted((p.number, b) for m in messages for p in m for b in range(p.start, p.stop))
    assert carried == [(number, b) for number, size in enumerate(sizes) for b in range(size)]
    for message in messages:
        assert 0 < sum(p.stop - p.start for p in message) <= limit
        whole = all((p.start, p.stop) == (0, sizes[p.number]) for p in message)
        assert len(message) == 1 or whole


@given(st.lists(st.sampled_from(["CLEAN", "NEW", "DIRTY"]), min_size=1, max_size=9))
def test_chains_reach_every_receiver_from_a_source(words: list[str]) -> None:
    choice = choose([RankStatus(3, MemoryCondition[word]) for word in words])
    for rank in range(len(words)):
        before, after = neighbours(choice, rank)
        assert (before is not None) == bool(choice.sources and rank in choice.receivers)
        if after is not None:
            assert neighbours(choice, after)[0] == rank
        seen = {rank}
        while before is not None:
            assert before not in seen
            seen.add(before)
            rank, before = before, neighbours(choice, before)[0]
        assert not choice.sources or rank in choice.sources
