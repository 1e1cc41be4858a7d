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

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointError
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.peers import Peers
from tests.ranks import entries_of, run_ranks, saves, values

if TYPE_CHECKING:
    from pathlib import Path


def shards(path: Path) -> None:
    model = nn.ParameterList([torch.zeros(1000) for _ in range(8)])
    Checkpointer(path, {"model": model}).save(sync=True)


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
    ckpt = Checkpointer(path, {"a": 1}, every="20ms")
    ckpt.resume()
    chance = random.Random(dist.get_rank())
    for _ in range(200):
        time.sleep(chance.uniform(0, 0.002))
        ckpt.step()
    ckpt.close()
    return len(saves(path))


def test_the_clock_of_one_rank_decides_for_all(tmp_path: Path) -> None:
    assert values(run_ranks(2, save_by_the_clock, tmp_path))[0] > 1


def overtaken(path: Path) -> None:
    ckpt = Checkpointer(path, {"a": 1}, every=1, keep=1, sync=True)
    ckpt.resume()
    ckpt.step()
    dist.barrier()
    if dist.get_rank() == 0:
        LocalStorage(path).take_term({"run": "other", "round": 8, "host": "there"})
    ckpt.step()


def test_a_job_that_was_overtaken_stops_on_all_ranks(tmp_path: Path) -> None:
    outcomes = run_ranks(2, overtaken, tmp_path)
    for outcome in outcomes:
        assert outcome.error == "CheckpointUsageError"
        assert "term 2 (run other, round 8, there)" in outcome.text
        assert "holds term 1" in outcome.text
    assert saves(tmp_path) == ["step-1.term-1"]


def no_space(path: Path, limit: int) -> None:
    model = nn.Linear(200, 200)
    ckpt = Checkpointer(path, {"model": model}, every=1, sync=True, on_save_error="raise")
    ckpt.resume()
    ckpt.step()
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    ckpt.step()


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
    ckpt = Checkpointer(path, {"model": model}, every="20 steps", on_save_error="raise")
    ckpt.resume()
    ckpt.save(sync=True)
    chance = random.Random(dist.get_rank())
    if dist.get_rank() == 1:
        soft = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, soft[1]))
    for _ in range(20):
        ckpt.step()
    try:
        while True:
            time.sleep(chance.uniform(0, 0.002))
            ckpt.step()
    except CheckpointError as error:
        failed = ckpt.steps, str(error)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    ckpt.save()
    ckpt.close()
    return *failed, ckpt.saved_step


def test_a_save_that_fails_beside_training_is_heard_at_the_same_step(tmp_path: Path) -> None:
    first, second = values(run_ranks(2, fail_beside, tmp_path))
    assert first == second
    step, text, held = first
    assert "rank-1.distcp: File too large; raise the limit on file sizes (ulimit -f)" in text
    assert 20 < step <= 40
    assert held == step
    assert saves(tmp_path) == ["step-0.term-1", f"step-{step}.term-2"]


def use(path: Path) -> None:
    Checkpointer(path, {"a": 1}, every=1).resume()


def test_a_bad_directory_is_everyones_error(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    outcomes = run_ranks(2, use, file)
    assert {(outcome.error, str(file) in outcome.text) for outcome in outcomes} == {
        ("CheckpointUsageError", True)
    }


def begin_without_space(path: Path) -> None:
    ckpt = Checkpointer(path, {"a": 1}, every=100, on_save_error="raise")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        ckpt.resume()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_space_is_found_before_the_first_step(tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, begin_without_space, tmp_path)
    assert outcome.error == "CheckpointFailed"
    assert outcome.text.startswith(f"cannot save checkpoints in {tmp_path}: File too large")
    assert entries_of(tmp_path) == []


def disagree_again(path: Path) -> list[str]:
    entries = {"model": nn.Linear(2, 2)}
    ckpt = Checkpointer(path, entries)
    ckpt.save(sync=True)
    entries["model"].register_buffer("odd", torch.zeros(dist.get_rank() + 1))
    heard = []
    for _ in range(2):
        ckpt.steps += 1
        try:
            ckpt.save()
            ckpt.close()
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
    entries = {"model": model, "value": torch.full((5,), rank)}
    ckpt = Checkpointer(path, entries)
    ckpt.save(sync=True)
    ckpt.resume()
    held = (model[1].running_mean, model[1].running_var, entries["value"])
    return [float(tensor[0]) for tensor in held]


def test_what_may_differ_between_ranks_is_that_of_rank_0(tmp_path: Path) -> None:
    assert values(run_ranks(2, differ, tmp_path)) == [[0.0] * 3] * 2
