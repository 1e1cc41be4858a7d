"""Faults between two syncs, and in the middle of one: what those keep that are left."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS
from tests import processes
from tests.integration.diloco.replica_job import BATCH
from tests.integration.diloco.replicas import Replicas

if TYPE_CHECKING:
    from pathlib import Path

SIZE = BATCH * 300
RHYTHMS = [
    {"sync_every": 30},
    {"sync_every": 40, "fragments": 2, "delay": 5},
    {"sync_every": 20, "local": True},
]


def kept(job: Replicas, pid: int, number: int) -> tuple[int, int]:
    """How many inner steps a process had made before a round, and with how many it has entered it.

    Both since the sync that it had last made.
    """
    (entered,) = [n for n in job.said("enter") if n["pid"] == pid and n["round"] == number]
    before = [n for n in job.said("inner") if n["pid"] == pid and n["at"] < entered["at"]]
    since = [note for note in before if note["step"] == entered["step"]]
    return len(since), entered["inner"]


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=["diloco", "fragments", "local"])
def test_who_is_left_goes_on_where_it_was(rhythm: dict[str, Any], tmp_path: Path) -> None:
    with Replicas(tmp_path, "--nproc-per-node=3", **rhythm) as job:
        first = job.together(3, inner=5, step=2)
        victim = first[1]
        processes.send([victim], signal.SIGKILL)
        second = job.together(2, after=1)
        job.together(3, after=2)  # the replacement has come
        assert job.end() == 0, job.story()
        for pid in second:
            made, began_with = kept(job, pid, 2)
            assert made == began_with, job.story()
        assert set(second) == set(first) - {victim}
        job.check_alike(3)
        # Of the shares of one rank, and no more than it has in an interval.
        job.check_lost(victim, SIZE, rhythm["sync_every"] * BATCH // 3)


def test_a_rank_that_is_behind_trains_what_the_others_have_had(tmp_path: Path) -> None:
    with Replicas(tmp_path, "--nproc-per-node=3", sync_every=100) as job:
        first = job.together(3)
        job.tell("slow", first[0])
        job.wait(lambda: ahead(job, first[2]) > ahead(job, first[0]) + 15, "a rank far behind")
        processes.send([first[1]], signal.SIGKILL)
        job.together(2, after=1)
        (tmp_path / f"slow-{first[0]}").unlink()
        assert job.end() == 0, job.story()
        # Nothing of the rank that was behind; of the other one its shares up to the furthest.
        job.check_lost(first[1], SIZE, 100 * BATCH // 3)


def ahead(job: Replicas, pid: int) -> int:
    """Inner steps of a process so far."""
    return sum(1 for note in job.said("inner") if note["pid"] == pid)


def test_a_rank_that_dies_during_a_sync_costs_the_others_none_of_their_steps(
    tmp_path: Path,
) -> None:
    with Replicas(tmp_path, "--nproc-per-node=3", sync_every=20) as job:
        first = job.together(3, step=1)
        job.tell("hold", first[2])
        job.wait(lambda: job.said("holds"), "a rank that holds up a sync")
        step = max(note["step"] for note in job.said("inner"))
        job.wait(lambda: waiting(job, first[:2], step), "two ranks at the sync")
        processes.send([first[2]], signal.SIGKILL)
        assert job.end() == 0, job.story()
        syncs = [n for n in job.said("sync") if n["pid"] in first[:2] and n["step"] == step + 1]
        job.check_alike(3)
        entered = [n for n in job.said("enter") if n["pid"] in first[:2] and n["round"] == 2]
        # They have made it on their way into the next round, and lost no inner step by it.
        assert syncs or all(note["step"] == step + 1 for note in entered)
        assert max(job.counted([first[2]]).values()) == 1


def waiting(job: Replicas, pids: list[int], step: int) -> bool:
    """Whether processes have made all inner steps before a sync."""
    made = [sum(1 for n in job.said("inner") if (n["pid"], n["step"]) == (p, step)) for p in pids]
    return made == [20] * len(pids)


def test_faults_that_come_faster_than_syncs_do_not_end_a_job(tmp_path: Path) -> None:
    forever = {"sync_every": 100_000, "size": BATCH * 100_000}
    with Replicas(tmp_path, "--nproc-per-node=3", "--grace=2", **forever) as job:
        killed: list[int] = []
        for _ in range(MAX_FRUITLESS_ROUNDS + 2):
            killed.append(young(job, killed))
            processes.send(killed[-1:], signal.SIGKILL)
        young(job, killed)  # two ranks go on
        assert not job.events("job.failed")
        assert not job.said("sync")
        (survivor, *_) = [n["pid"] for n in job.said("enter") if n["pid"] not in killed]
        last = [note for note in job.said("enter") if note["pid"] == survivor][-1]
        assert kept(job, survivor, last["round"])[0] == last["inner"] > 0


def young(job: Replicas, killed: list[int]) -> int:
    """Waits until two ranks train in a world without these processes, and gives one of them.

    It is one that was not there from the beginning, if there is one.
    """

    def look() -> list[int]:
        enters = job.said("enter")
        newest = [note for note in enters if note["round"] == job.round]
        there = [note["pid"] for note in newest]
        since = max((note["at"] for note in newest), default=0.0)
        trained = {note["pid"] for note in job.said("inner") if note["at"] > since}
        alive = len(there) >= 2 and not {*there} & {*killed} and trained >= {*there}
        first = [note["pid"] for note in enters]
        return sorted(there, key=first.index) if alive else []

    return int(job.wait(look, "two ranks that train")[-1])


def test_after_the_loss_of_all_memory_all_begin_at_the_last_sync_that_was_saved(
    tmp_path: Path,
) -> None:
    with Replicas(tmp_path, "--nproc-per-node=2", sync_every=20, saves=True) as job:
        job.wait(lambda: job.events("checkpoint.saved"), "a save")
        first = job.together(2, inner=3, step=3)
        processes.send(first, signal.SIGKILL)
        job.together(2, after=1)
        assert job.end() == 0, job.story()
        entered = [note for note in job.said("enter") if note["round"] > 1]
        assert entered[0]["step"] > 0
        assert all(note["made"] == 20 * note["step"] for note in entered[:2])
        job.check_alike(2)


def test_what_is_not_finite_on_one_rank_does_not_spoil_the_common_model(tmp_path: Path) -> None:
    with Replicas(tmp_path, "--nproc-per-node=2", sync_every=20) as job:
        first = job.together(2, step=1)
        job.tell("spoil", first[1])
        assert job.event("state.replica_dropped")["rank"] == 1
        assert job.end() == 0, job.story()
        assert all(note["finite"] for note in job.said("sync"))
        job.check_alike(2)


def test_shards_that_are_read_in_order_are_read_once(tmp_path: Path) -> None:
    for shard in range(6):
        numbers = range(shard * 500, shard * 500 + 500)
        (tmp_path / f"{shard}.jsonl").write_text("".join(f"{number}\n" for number in numbers))
    with Replicas(tmp_path, "--nproc-per-node=3", sync_every=20, stream=True) as job:
        first = job.together(3, inner=5, step=2)
        processes.send([first[1]], signal.SIGKILL)
        job.together(2, after=1)
        assert job.end() == 0, job.story()
        job.check_alike(3)
        assert max(job.counted([first[1]]).values()) == 1
