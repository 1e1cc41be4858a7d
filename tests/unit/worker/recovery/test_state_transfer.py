"""Which state all ranks go on from, and how it reaches them: by rules, and in real processes."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.limits import LOST_STEPS_ALLOWED
from elastic_runtime.parts.tensor_form import TensorForm
from elastic_runtime.training.state import State
from elastic_runtime.worker.peers import GlooGroups
from elastic_runtime.worker.recovery import state_transfer
from elastic_runtime.worker.recovery.common_state import EarlierRounds, StateRecovery
from elastic_runtime.worker.recovery.optimizer_prealloc import PreallocatedTensors
from elastic_runtime.worker.recovery.recovery_source import (
    NOTHING,
    MemoryCondition,
    RankStatus,
    StateLost,
    StateVersion,
    choose,
    may_be_behind,
)
from elastic_runtime.worker.recovery.state_transfer import (
    Restorer,
    bring_together,
    neighbours,
    plan,
)
from elastic_runtime.worker.world import FollowsWorld, World
from tests.ranks import kill_self, run_ranks, values
from tests.unit.parts.small_job import Job

if TYPE_CHECKING:
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice


NEW, CLEAN, DIRTY = MemoryCondition

statuses = st.lists(
    st.builds(
        RankStatus,
        st.integers(0, 5),
        st.sampled_from(MemoryCondition),
        round=st.integers(1, 3),
        term=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)


def ranks(words: str) -> list[RankStatus]:
    """From ``"4clean 3dirty new 3clean@2/1"``: with the round, and the term that is known."""
    found = []
    for word in words.split():
        body, _, rest = word.partition("@")
        number, _, term = rest.partition("/")
        digits = "".join(filter(str.isdigit, body))
        condition = MemoryCondition[body.removeprefix(digits).upper()]
        found.append(RankStatus(int(digits or 0), condition, int(number or 1), int(term or 0)))
    return found


@pytest.mark.parametrize(
    ("where", "kind", "step", "sources"),
    [
        ("new new", "fresh", 0, (0,)),
        ("4clean 4clean", "memory", 4, (0, 1)),
        ("new 4clean", "memory", 4, (1,)),
        ("3clean 4clean", "memory", 4, (1,)),
        ("4dirty 3clean", "memory", 3, (1,)),
        ("4dirty new", "lost", 0, ()),
        # Who was left out is ahead, and nothing was saved without it.
        ("8clean@3/1 7clean@4/1", "memory", 8, (0,)),
        ("8clean@3/1 8clean@4/1", "memory", 8, (1,)),
        # The others have fallen back and saved since: the step that it holds is of no use.
        ("8clean@3/1 5clean@4/2", "memory", 5, (1,)),
        # It had heard of a term, and those who went on had not: nothing was saved in it.
        ("4clean@3/2 9clean@4/1", "memory", 9, (1,)),
        ("4clean@3/2 3clean@4/1", "memory", 4, (0,)),
        # Of one round, not all had heard of a term when it broke.
        ("4clean@3/2 5clean@3/1", "memory", 5, (1,)),
        # Those of the newer term cannot serve.
        ("8clean@3/1 5dirty@4/2", "memory", 8, (0,)),
    ],
)
def test_rules(where: str, kind: str, step: int, sources: tuple[int, ...]) -> None:
    choice = choose(ranks(where))
    assert (choice.kind.value, choice.step, choice.sources) == (kind, step, sources)
    assert choice.reason
    assert (choice.in_memory is None) == (kind != "memory")


@pytest.mark.parametrize(
    ("where", "held"),
    [
        ("4clean@3/1", StateVersion(1, 4)),
        ("4clean@3/1 3clean@4/2", StateVersion(2, 3)),
        ("8clean@3/1 5dirty@4/2", StateVersion(1, 8)),  # what is saved in term 2 counts more
        ("4clean@3/2 9clean@4/1", StateVersion(2, 9)),
    ],
)
def test_what_memory_has_to_say_against_a_checkpoint(where: str, held: StateVersion) -> None:
    assert choose(ranks(where)).in_memory == held


@pytest.mark.parametrize(
    ("where", "before", "asks"),
    [
        ("4clean@5 new", 5, False),
        ("4clean@5 4clean@3", 5, False),
        ("4dirty@5 4clean@3", 5, True),  # step 5 may have been saved in round 5
        ("4clean@3", 5, True),
        ("4clean@5", -1, True),
        ("new", 5, True),
    ],
)
def test_who_was_in_the_last_round_need_not_ask(where: str, before: int, asks: bool) -> None:
    there = [replace(s, latest=s.round == before) for s in ranks(where)]
    assert may_be_behind(there) == asks


@given(statuses)
def test_a_clean_commit_of_the_newest_term_is_never_lost(where: list[RankStatus]) -> None:
    choice = choose(where)
    last = max((s.round for s in where if s.condition is CLEAN), default=0)
    newest = max((s.term for s in where), default=0)
    for one in where:
        if one.condition is CLEAN and one.round == last and one.term == newest:
            assert choice.step >= one.step


@given(statuses)
def test_never_goes_beyond_what_somebody_holds(where: list[RankStatus]) -> None:
    choice = choose(where)
    if choice.kind.value == "memory":
        for rank in choice.sources:
            assert (where[rank].step, where[rank].condition) == (choice.step, CLEAN)
        assert choice.sources
    else:
        assert choice.step == 0


@given(statuses)
def test_every_rank_is_a_source_or_a_receiver(where: list[RankStatus]) -> None:
    choice = choose(where)
    assert sorted(choice.sources + choice.receivers) == list(range(len(where)))


@given(statuses, st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_only_the_names(where: list[RankStatus], random: object) -> None:
    shuffled = list(where)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = choose(where), choose(shuffled)
    assert (one.kind, one.step, one.reason) == (other.kind, other.step, other.reason)
    if one.kind.value == "memory":
        assert len(one.sources) == len(other.sources)


@given(statuses)
def test_what_a_new_rank_says_of_its_step_means_nothing(where: list[RankStatus]) -> None:
    plain = [RankStatus(0, NEW) if s.condition is NEW else s for s in where]
    assert choose(plain) == choose(where)


# When it is better to stop than to go on from nothing


_NEW = RankStatus(0, MemoryCondition.NEW)


def _check(status: RankStatus, committed: int, *, start_over: bool = False) -> None:
    state = State(model=nn.Linear(1, 1)).keep_in_memory()
    settling = StateRecovery(state, None, lambda *_, **__: None, start_over=start_over)
    settling._check_beginning(choose([status]), EarlierRounds("job", committed))


@pytest.mark.parametrize("committed", [-1, 0, LOST_STEPS_ALLOWED])
def test_a_job_that_has_committed_next_to_nothing_begins_again(committed: int) -> None:
    _check(_NEW, committed)


def test_nobody_falls_back_to_the_beginning_in_silence() -> None:
    with pytest.raises(UsageError, match=r"nothing is saved: 61 steps are lost.*start_over"):
        _check(_NEW, 61)
    _check(_NEW, 61, start_over=True)


def test_half_done_memory_is_nothing_to_go_on_from() -> None:
    dirty = RankStatus(61, MemoryCondition.DIRTY, round=1)
    with pytest.raises(UsageError, match="no rank holds a whole state any more"):
        _check(dirty, -1)
    # Processes that are new begin again.
    with pytest.raises(StateLost):
        _check(dirty, -1, start_over=True)


class _Part:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class _OfAnotherLibrary(_Part):
    """Its methods have other arguments, as has the ``connect`` of Lightning's precision."""

    def enter(self) -> None:
        raise AssertionError("nobody of ours may call it")

    use_groups = connect = enter


class _Follower(_Part, FollowsWorld):
    world: World | None = None
    ranks: list[int] | None = None

    def enter(self, world: World) -> None:
        self.world, self.ranks = world, None

    def use_groups(self, gloo: GlooGroups) -> None:
        self.ranks = dist.get_process_group_ranks(gloo.group)


def _followed() -> tuple[World | None, list[int] | None]:
    part = _Follower()
    state = State(model=nn.Linear(1, 1), part=part, other=_OfAnotherLibrary()).keep_in_memory()
    gloo = GlooGroups(dist.new_group(), dist.new_group, lambda: False)
    recovery = StateRecovery(state, None, lambda *_, **__: None, start_over=False)
    recovery.recover(gloo, World.of_environment(os.environ), EarlierRounds())
    return part.world, part.ranks


def test_only_parts_that_say_so_follow_the_world() -> None:
    for rank, outcome in enumerate(run_ranks(2, _followed)):
        assert outcome.value, outcome
        world, ranks = outcome.value
        assert (world.rank, world.size, ranks) == (rank, 2, [0, 1])


# Ranks with different states are brought together: real processes, real gloo


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
    assert after == results[sources[0]][4]  # to the last bit


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
        job.state._load(*loaded.state.commit_image())
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


class Thing:
    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        if self.state.get("fail"):
            raise ValueError("cannot take this")


def gives(kind: str) -> None:
    """Rank 0 gives away a state that cannot be given, or not to this one."""
    rank = dist.get_rank()
    state = State(
        model=nn.Linear(2 + (kind == "models differ" and rank == 1), 2),
        thing=Thing(
            function=(lambda: 0) if kind == "a function" and rank == 0 else None,
            a=rank // 2 if kind == "forgets" else 0,
            fail=kind == "fails" and rank == 1,
        ),
    ).keep_in_memory()
    if rank == 0:
        state.remember_commit(1)
    together(state)


@pytest.mark.parametrize(
    ("kind", "errors", "text"),
    [
        # Refused on all ranks before anything moves.
        ("models differ", ["UsageError"] * 3, "rank 1: models differ between ranks: model.weight"),
        ("a function", ["UsageError"] * 2, "rank 0: thing.function is a builtins.function"),
        # A rank that is not alike afterwards is named.
        ("forgets", ["RanksDiffer"] * 3, "the load_state_dict of 'thing' does not"),
        # A failure to load is that of its rank.
        ("fails", ["RanksDiffer", "ValueError"], "cannot take this"),
    ],
)
def test_a_state_that_cannot_be_given_is_an_error_on_all_ranks(
    kind: str, errors: list[str], text: str
) -> None:
    outcomes = run_ranks(len(errors), gives, kind)
    assert [outcome.error for outcome in outcomes] == errors
    assert all(text in one.text for one in outcomes if one.error == errors[-1])


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
    state = State(module=module).keep_in_memory()
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


# Memory for optimizer state that is touched before it is received


# Larger than what the allocator ever keeps when it is freed: fresh memory is untouched.
_LARGE = 9 << 20


def _in_memory(tensor: torch.Tensor) -> bool:
    """Whether the pages of a tensor are there already: untouched ones are not."""
    first, last = tensor.data_ptr() >> 12, (tensor.data_ptr() + tensor.nbytes - 1) >> 12
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first * 8)
        entries = memoryview(file.read((last - first + 1) * 8)).cast("Q")
    return all(entry >> 63 for entry in entries)


def test_the_memory_is_there_and_is_given_away_once() -> None:
    parameter = torch.empty(_LARGE)
    room = PreallocatedTensors([parameter])
    form = TensorForm.of(parameter)
    given = [room.take(form), room.take(form)]
    assert all(map(_in_memory, given))
    assert not _in_memory(room.take(form)), "there were two only"
    assert given[0].data_ptr() != given[1].data_ptr()
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in given)


def test_another_form_gets_memory_of_its_own() -> None:
    taken = PreallocatedTensors([torch.empty(8)]).take(TensorForm((3,), torch.int64, "cpu"))
    assert (taken.dtype, taken.shape) == (torch.int64, (3,))


def test_a_state_makes_room_for_optimizers_that_have_made_no_step() -> None:
    model = nn.Linear(_LARGE >> 10, 1 << 10, bias=False)
    optim = torch.optim.Adam(model.parameters())
    state = State(model=model, optim=optim).keep_in_memory()
    form = TensorForm.of(model.weight)
    state.preallocate()
    assert _in_memory(state.tensor_for(form))
    state.drop_preallocated()
    assert not _in_memory(state.tensor_for(form))
    model(torch.ones(1, _LARGE >> 10)).sum().backward()
    optim.step()
    state.preallocate()
    assert not _in_memory(state.tensor_for(form)), "it has its state already"
