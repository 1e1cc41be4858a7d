"""Several ranks over gloo: resharding, agreement, fences and failures that all ranks share."""

from __future__ import annotations

import random
import resource
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime import State, load
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.peers import Peers
from tests.ranks import entries_of, run_ranks, saves, values
from tests.trained import cut_off, trained

if TYPE_CHECKING:
    from pathlib import Path


def shards(path: Path) -> None:
    model = nn.ParameterList([torch.zeros(1000) for _ in range(8)])
    state = State(model=model)
    state.checkpoints(path)
    with trained(state):
        state.save(sync=True)


def test_replicated_tensors_are_spread_over_the_ranks(tmp_path: Path) -> None:
    values(run_ranks(2, shards, tmp_path))
    sizes = [(tmp_path / "step-0.term-1" / f"rank-{r}.distcp").stat().st_size for r in (0, 1)]
    assert min(sizes) > 4 * 4000


def agree(seed: int, steps: int) -> list[tuple[int, int]]:
    """Steps of random length, with wishes at random steps of random ranks."""
    agreement = Agreement((peers := Peers()).group)
    chance = random.Random(f"{seed} {peers.rank}")
    heard = []
    wishes = Wish.NOTHING

    def asked() -> Wish:
        nonlocal wishes
        told, wishes = wishes, Wish.NOTHING
        return told

    for step in range(steps):
        time.sleep(chance.choice([0.0, 0.0, 0.0005, 0.005]))
        wishes |= Wish.SAVE if chance.random() < 0.05 else Wish.NOTHING
        if step == 150 and peers.rank == 1:
            wishes |= Wish.LEAVE
        agreed = agreement.step(asked)
        if agreed:
            heard.append((step, int(agreed)))
        if Wish.LEAVE in agreed:
            break
    agreement.close()
    return heard


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_hear_the_same_at_the_same_step(world: int) -> None:
    found = values(run_ranks(world, agree, world, 400))
    assert all(heard == found[0] for heard in found)
    assert len(found[0]) > 3
    last_step, last_wish = found[0][-1]
    assert last_wish & Wish.LEAVE
    assert 150 < last_step < 150 + 64 + 2


def save_by_the_clock(path: Path) -> int:
    state = State(a=1)
    state.checkpoints(path, every="20ms")
    chance = random.Random(dist.get_rank())
    with trained(state):
        for _ in range(200):
            time.sleep(chance.uniform(0, 0.002))
            state.commit()
    return len(saves(path))


def test_the_clock_of_one_rank_decides_for_all(tmp_path: Path) -> None:
    assert values(run_ranks(2, save_by_the_clock, tmp_path))[0] > 2


def overtaken(path: Path) -> None:
    state = State(a=1)
    state.checkpoints(path, every=1, keep=1, sync=True)
    with trained(state):
        state.commit()
        dist.barrier()
        if dist.get_rank() == 0:
            LocalStorage(path).take_term({"run": "other", "round": 8, "host": "there"})
        state.commit()


def test_a_job_that_was_overtaken_stops_on_all_ranks(tmp_path: Path) -> None:
    outcomes = run_ranks(2, overtaken, tmp_path)
    for outcome in outcomes:
        assert outcome.error == "CheckpointUsageError"
        assert "term 2 (run other, round 8, there)" in outcome.text
        assert "holds term 1" in outcome.text
    assert saves(tmp_path) == ["step-1.term-1"]


def no_space(path: Path, limit: int) -> None:
    model = nn.Linear(200, 200)
    state = State(model=model)
    state.checkpoints(path, every=1, sync=True, on_error="raise")
    with trained(state):
        state.commit()
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        state.commit()


def test_a_full_disk_of_one_rank_is_everyones_error(tmp_path: Path) -> None:
    outcomes = run_ranks(2, no_space, tmp_path, 100)
    assert {outcome.error for outcome in outcomes} == {"CheckpointFailed"}
    assert len({outcome.text for outcome in outcomes}) == 1
    path = tmp_path / "step-2.term-1" / "rank-1.distcp"
    assert outcomes[0].text == (
        f"cannot save to {path}: File too large; raise the limit on file sizes (ulimit -f)"
    )
    assert saves(tmp_path) == ["step-1.term-1"]


def fail_beside(path: Path) -> tuple[int, str, int]:
    """A save that fails on one rank while all train on; each rank's steps take another time."""
    model = nn.ParameterList([torch.zeros(500, 500) for _ in range(2)])
    state = State(model=model)
    state.checkpoints(path, every="20 steps", on_error="raise")
    chance = random.Random(dist.get_rank())
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    with trained(state):
        state.save(sync=True)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, soft[1]))
        for _ in range(20):
            state.commit()
        try:
            while True:
                time.sleep(chance.uniform(0, 0.002))
                state.commit()
        except CheckpointError as error:
            failed = state.step, str(error)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        state.save()
    other = State(model=model)
    return *failed, load(path, other)


def test_a_save_that_fails_beside_training_is_heard_at_the_same_step(tmp_path: Path) -> None:
    first, second = values(run_ranks(2, fail_beside, tmp_path))
    assert first == second
    step, text, held = first
    assert "rank-1.distcp: File too large; raise the limit on file sizes (ulimit -f)" in text
    assert 20 < step <= 40
    assert held == step
    assert saves(tmp_path) == ["step-0.term-1", f"step-{step}.term-2"]


def use(path: Path) -> None:
    state = State(a=1)
    state.checkpoints(path, every=1)
    with trained(state):
        pass


def test_a_bad_directory_is_everyones_error(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    outcomes = run_ranks(2, use, file)
    assert {(outcome.error, str(file) in outcome.text) for outcome in outcomes} == {
        ("CheckpointUsageError", True)
    }


def begin_without_space(path: Path) -> None:
    state = State(a=1)
    state.checkpoints(path, every=100, on_error="raise")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with trained(state):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_space_is_found_before_the_first_step(tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, begin_without_space, tmp_path)
    assert outcome.error == "CheckpointFailed"
    assert outcome.text.startswith(f"cannot save checkpoints in {tmp_path}: File too large")
    assert entries_of(tmp_path) == []


def disagree_again(path: Path) -> list[str]:
    model = nn.Linear(2, 2)
    state = State(model=model)
    state.checkpoints(path)
    heard = []
    with cut_off(state):
        state.save(sync=True)
        model.register_buffer("odd", torch.zeros(dist.get_rank() + 1))
        for _ in range(2):
            state.commit()
            try:
                state.save(sync=True)
            except CheckpointError as error:
                heard.append(str(error))
    return heard


def test_ranks_that_disagree_are_told_so_each_time(tmp_path: Path) -> None:
    for heard in values(run_ranks(2, disagree_again, tmp_path)):
        assert ["disagree about model.odd" in text for text in heard] == [True, True]
    assert saves(tmp_path) == ["step-0.term-1"]


def differ(path: Path) -> list[float]:
    rank = float(dist.get_rank())
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    model[1].running_mean.fill_(rank)
    model[1].running_var.fill_(rank)
    state = State(model=model, value=rank)
    state.checkpoints(path)
    with trained(state):
        state.save(sync=True)
    state.value = -1.0
    load(path, state)
    return [float(model[1].running_mean[0]), float(model[1].running_var[0]), state.value]


def test_what_may_differ_between_ranks_is_that_of_rank_0(tmp_path: Path) -> None:
    assert values(run_ranks(2, differ, tmp_path)) == [[0.0] * 3] * 2


def differ_in_tensors(path: Path) -> list[float]:
    rank = float(dist.get_rank())
    # So many that each rank writes some of them.
    state = State(**{f"value_{n}": torch.full((5,), rank) for n in range(4)})
    state.checkpoints(path)
    with trained(state):
        state.save(sync=True)
    load(path, state)
    return [float(getattr(state, f"value_{n}")[0]) for n in range(4)]


def test_values_that_are_tensors_are_those_of_rank_0_too(tmp_path: Path) -> None:
    assert values(run_ranks(2, differ_in_tensors, tmp_path)) == [[0.0] * 4] * 2
