"""What rounds leave in the store of an agent, made by real gloo groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from elastic_runtime.agent.runtime_dir import RuntimeDir
from elastic_runtime.agent.workers.round_keys import forget_rounds, key_of
from elastic_runtime.agent.workers.worker_group import WorkerGroup
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.system.listening import Where
from tests.processes import wait_for
from tests.unit.agent.jobs import job

if TYPE_CHECKING:
    from pathlib import Path

JOB = "node0-5f3a.1"


def connect(store: dist.TCPStore, key: str, ranks: int = 3) -> None:
    """Connects the ranks of a round, as each of its groups is connected."""

    def one(rank: int) -> dist.ProcessGroup:
        place = dist.PrefixStore(key, store.clone())
        return dist.ProcessGroupGloo(place, rank, ranks, timedelta(seconds=30))

    with ThreadPoolExecutor(ranks) as pool:
        groups = list(pool.map(one, range(ranks)))
    del groups  # only now: who is gone while another one still connects is missed by that one


def keys_of(store: dist.TCPStore, key: str) -> list[str]:
    return [one for one in store.list_keys() if one.startswith(f"{key}/")]


def test_the_keys_of_rounds_do_not_pile_up() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("of the store itself", "stays")
    counts = []
    for number in range(1, 21):
        connect(store, key_of(JOB, number))
        forget_rounds(store, JOB, number)
        counts.append(store.num_keys())
    assert len(set(counts[1:])) == 1, counts
    assert keys_of(store, key_of(JOB, 20))
    assert keys_of(store, key_of(JOB, 19)), "a rank may be late in it"
    assert not keys_of(store, key_of(JOB, 18))
    assert store.get("of the store itself") == b"stays"


def test_an_agent_clears_its_store_as_its_workers_enter_a_round(tmp_path: Path) -> None:
    runtime_dir = RuntimeDir(str(tmp_path))
    workers = WorkerGroup(job(), runtime_dir, dict, lambda item: None, Where("127.0.0.1"))
    workers.host_store()
    client = dist.TCPStore(
        "127.0.0.1", workers.reserve_port(), is_master=False, wait_for_workers=False
    )
    try:
        for number in range(1, 6):
            connect(client, key_of(JOB, number))
            members = (Member("a", "a", "127.0.0.1", 1, store_port=workers.reserve_port()),)
            workers.enter(RoundRecord(number, JOB, members, workers.reserve_port(), "why"), 0, [])
        wait_for(lambda: not keys_of(client, key_of(JOB, 3)), 20, "the third round to be forgotten")
        assert keys_of(client, key_of(JOB, 4))
    finally:
        workers.hang_up()
        workers.close()
        runtime_dir.remove()


def test_a_new_incarnation_of_a_job_counts_from_one_again() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for number in (7, 8):
        connect(store, key_of(JOB, number))
    connect(store, key_of("node1-77aa.9", 9))
    forget_rounds(store, "node1-77aa.9", 9)
    assert not keys_of(store, key_of(JOB, 8))
    assert keys_of(store, key_of("node1-77aa.9", 9))


def test_a_store_that_is_gone_is_no_error() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = store.clone()
    del store
    with pytest.raises(dist.DistNetworkError):
        client.list_keys()
    forget_rounds(client, JOB, 3)
