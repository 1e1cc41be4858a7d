"""The workers of an agent: when each is to be ended, what their rounds leave, torch's watchdogs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from elastic_runtime.agent.runtime_dir import RuntimeDir
from elastic_runtime.agent.workers import torch_watchdogs
from elastic_runtime.agent.workers.roster import Roster, Worker
from elastic_runtime.agent.workers.round_keys import forget_rounds, key_of
from elastic_runtime.agent.workers.start_retry import StartRetry
from elastic_runtime.agent.workers.torch_watchdogs import Watchdogs
from elastic_runtime.agent.workers.worker_group import WorkerGroup
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.system.listening import Where
from tests.processes import wait_for
from tests.unit.agent.jobs import job

if TYPE_CHECKING:
    from pathlib import Path


def _add(roster: Roster, local_rank: int, descriptors: list[int] | None = None) -> Worker:
    spec: Any = SimpleNamespace(local_rank=local_rank)
    return roster.add(spec, {"op": "start"}, descriptors or [], [])


def test_each_worker_has_a_number_of_its_own_also_in_its_request() -> None:
    roster = Roster()
    first, second = _add(roster, 0), _add(roster, 0)
    assert [first.request["id"], second.request["id"]] == [first.id, second.id]
    assert first.id != second.id
    assert roster.get(second.id) is second
    roster.remove(first)
    assert roster.get(first.id) is None
    assert _add(roster, 1).id not in (first.id, second.id), "a late message may name an old one"


def test_workers_are_found_by_their_local_ranks() -> None:
    roster = Roster()
    workers = [_add(roster, local_rank) for local_rank in range(3)]
    assert roster.all() == workers
    assert roster.all((0, 2)) == [workers[0], workers[2]]
    assert roster.all(()) == []


def test_the_earliest_end_counts_and_each_overdue_worker_is_named_once() -> None:
    roster = Roster()
    early, late, spared = (_add(roster, local_rank) for local_rank in range(3))
    assert roster.end_at(10.0, (0,)) == [early]
    roster.end_at(20.0, (0, 1))
    assert sorted(roster.moments(5.0)) == [10.0, 20.0]
    assert roster.overdue(9.9) == []
    assert roster.overdue(10.0) == [early]
    assert roster.overdue(20.0) == [late]
    assert roster.overdue(99.0) == []
    assert sorted(roster.moments(5.0)) == [15.0, 25.0]
    assert roster.unreported(14.9, 5.0) == []
    assert roster.unreported(15.0, 5.0) == [early]
    assert roster.unreported(25.0, 5.0) == [early, late], "once in a while"
    assert spared.kill_at is None


def test_only_starts_that_were_refused_and_not_sent_again_are_tried_again() -> None:
    roster = Roster()
    refused, sent, _waits = (_add(roster, local_rank) for local_rank in range(3))
    refused.retry = sent.retry = StartRetry(since=0.0, refusals=1, again=1.0)
    sent.sent = True
    assert roster.refused() == [(refused, refused.retry)]


def test_what_only_a_start_needs_is_closed_once() -> None:
    reading, writing = os.pipe()
    worker = _add(Roster(), 0, [reading])
    worker.close()
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)
    worker.close()


def test_one_that_dies_is_no_worker_any_more_and_holds_the_next_one_up() -> None:
    roster = Roster()
    first, other = _add(roster, 0), _add(roster, 1)
    first.dies = True
    following = _add(roster, 0)
    assert roster.all() == [other, following]
    assert roster.dying() == [first]
    assert roster.has_predecessor(following)
    assert not roster.has_predecessor(other)
    roster.remove(first)
    assert not roster.has_predecessor(following)


# What rounds leave in the store of an agent, made by real gloo groups


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


# torch's watchdogs start when the environment asks for them, and else never


TIMER = "elastic_runtime.agent.workers.torch_watchdogs.timer.FileTimerServer"
ON, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"


class _Server:
    """Stands in for both of torch's servers."""

    made: list[_Server]

    def __init__(self, **options: Any) -> None:
        self.options, self.does = options, list[str]()
        self.made.append(self)

    def start(self) -> None:
        self.does.append("start")

    def stop(self) -> None:
        self.does.append("stop")

    def get_last_progress_time(self) -> int:
        return 50


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Server]:
    found: list[_Server] = []
    monkeypatch.setattr(_Server, "made", found, raising=False)
    monkeypatch.setattr(TIMER, _Server)
    monkeypatch.setattr(torch_watchdogs, "create_healthcheck_server", _Server)
    monkeypatch.delenv(ON, raising=False)
    monkeypatch.delenv(FILE, raising=False)
    return found


def test_none_starts_unasked(made: list[_Server], tmp_path: Path) -> None:
    watchdogs = Watchdogs("run", str(tmp_path), 0, lambda: 0.0)
    watchdogs.start()
    watchdogs.stop()
    assert not made and watchdogs.environment() == {}


def test_each_starts_once_and_ends(
    made: list[_Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ON, "1")
    watchdogs = Watchdogs("run", str(tmp_path), 8080, lambda: 40.9)
    watchdogs.start()
    watchdogs.start()
    timer, health = made
    assert watchdogs.environment() == {FILE: str(tmp_path / "timers")}
    assert timer.options["file_path"] == str(tmp_path / "timers")
    assert (timer.options["run_id"], health.options["port"]) == ("run", 8080)
    assert health.options["alive_callback"]() == 50, "the later of the two signs of life"
    watchdogs.stop()
    assert health.options["alive_callback"]() == 40
    assert [server.does for server in made] == [["start", "stop"]] * 2


def test_a_path_where_no_pipe_can_be_made_is_a_mistake_of_the_users(
    made: list[_Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**_: Any) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setenv(ON, "1")
    monkeypatch.setenv(FILE, "/proc/x")
    monkeypatch.setattr(TIMER, fail)
    with pytest.raises(UsageError, match=r"TORCHELASTIC_TIMER_FILE='/proc/x'.*Permission denied"):
        Watchdogs("run", str(tmp_path), 0, lambda: 0.0).start()
