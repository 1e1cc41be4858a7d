"""Jobs that go on from the memory of their agents, whoever dies."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.integration.snapshots.job import Job

if TYPE_CHECKING:
    from pathlib import Path


def resumed(job: Job, number: int, world: int) -> str:
    """Where so many ranks went on from; fails if that is not the newest snapshot or newer."""
    job.notes("began", world)
    event = job.event("checkpoint.resumed", number)
    assert event["reached"] >= event["step"], "how many steps are made again follows from these"
    before = [taken for taken in job.events("snapshot.taken") if taken["round"] < event["round"]]
    if event["source"] != "storage":
        assert event["step"] >= before[-1]["step"]
    return str(event["source"])


@pytest.mark.users_start
@pytest.mark.golden("snapshots in memory: workers and a node die")
def test_workers_die_then_all_of_them_then_a_node(tmp_path: Path) -> None:
    with Job(tmp_path, "ddp", 2) as job:
        held = job.train(2)
        job.kill(held[1:])
        assert resumed(job, 1, 2) == "memory"
        held = job.train(2)
        job.kill(held)
        assert resumed(job, 2, 2) == "memory"
        held = job.train(2)
        assert job.event("snapshot.taken")["copied"]
        job.kill_node(1)
        assert resumed(job, 3, 1) == "memory"
        job.finish()
        # From memory it goes on to storage as if it had never been anywhere else.
        assert job.events("checkpoint.saved")[-1]["step"] >= held[0].step - 4
        job.wait(lambda: not job.memories(), "the end of the killed agent's memory")


def test_three_nodes_become_two_and_three_again(tmp_path: Path) -> None:
    with Job(tmp_path, "ddp", 3) as job:
        job.train(3)
        job.kill_node(1)
        assert resumed(job, 1, 2) in ("memory", "peer")
        job.add_node()
        job.go()
        job.event("checkpoint.resumed", 2)
        job.notes("began", 3)
        held = job.hold(3)
        job.kill(held[2:])
        # No node holds the files of all three.
        assert resumed(job, 3, 3) == "peer"
        job.finish()


def test_sharded_over_two_nodes_of_which_one_dies(tmp_path: Path) -> None:
    with Job(tmp_path, "fsdp", 2, "--nproc-per-node", "2") as job:
        held = job.train(4)
        job.kill_node(0 if held[0].rank else 1)
        assert resumed(job, 1, 2) == "memory"
        job.train(2)
        job.finish()
        job.wait(lambda: not job.memories(), "the end of the killed agent's memory")


def test_a_damaged_snapshot_gives_way_to_a_checkpoint(tmp_path: Path) -> None:
    # Saved so seldom that the snapshot is the newer one wherever a slow machine holds the job.
    with Job(tmp_path, "ddp", 1, "--nproc-per-node", "2", every=61) as job:
        job.go()
        job.event("checkpoint.saved")
        held = job.hold(2)
        for file in job.snapshots():
            if file.name == "rank-1.distcp":
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)
        job.kill(held[1:])
        job.notes("began", 2)
        event = job.event("checkpoint.damaged")
        assert event["path"] == "memory"
        assert "rank-1.distcp" in event["problem"]
        assert resumed(job, 1, 2) == "storage"
        assert not job.snapshots()
        job.train(2)
        job.finish()
        assert not job.memories()
        (secret,) = job.secrets()
        assert len(secret) == 64
        assert secret not in job.everything()
        assert secret not in job.environments()


def test_all_workers_in_place_die_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, "in_place", 2) as job:
        held = job.train(2)
        processes.send([note.pid for note in held], signal.SIGSTOP)
        job.kill(held)
        assert resumed(job, 1, 2) == "memory"
        job.train(2)
        job.finish()
        assert not job.memories()


@pytest.mark.parametrize(
    ("memory", "event", "problem"),
    [
        ("100KiB", "snapshot.refused", "--snapshot-memory is 100 KiB"),
        ("0", "snapshot.off", ""),
    ],
)
def test_without_enough_memory_it_is_told_once_and_training_goes_on(
    tmp_path: Path, memory: str, event: str, problem: str
) -> None:
    with Job(tmp_path, "ddp", 1, "--snapshot-memory", memory, every=20) as job:
        job.go()
        job.event("checkpoint.saved", 2)
        assert not job.count("snapshot.taken")
        (told,) = job.events(event)
        assert problem in told.get("problem", "")
        job.finish()
        assert not job.memories()
