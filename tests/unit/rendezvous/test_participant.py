"""A node's settings, its address, and its writes beside its decisions."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from elastic_runtime import defaults
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Timeouts
from elastic_runtime.protocol.records import EVENTS, NODES, EventRecord, NodeRecord
from elastic_runtime.rendezvous import participant
from elastic_runtime.rendezvous.core.membership_events import Goodbye, Join
from elastic_runtime.rendezvous.node_address import interface_of, own_address
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("h:1",)), "r")


def test_the_rendezvous_is_told_the_time_outs_of_the_job() -> None:
    times = Timeouts(lease_ttl=9.0, join_timeout=7.0)
    policy = Policy.of(CONFIG.with_(timeouts=times, max_nodes=4, max_restarts=5))
    assert policy.timeouts is times
    assert policy.settle == 9.0
    assert (policy.max_nodes, policy.max_restarts, policy.entry) == (4, 5, "train.py")
    assert "h:1" in policy.remedy


def test_an_etcd_needs_no_remedy() -> None:
    assert Policy.of(CONFIG.with_(endpoint=Endpoint("etcd", ("h:1",)))).remedy == ""


def test_an_absent_key_proves_nothing_for_a_while_however_short_leases_are() -> None:
    assert Policy.of(CONFIG.with_(timeouts=Timeouts(lease_ttl=1.0))).settle == defaults.SETTLE


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(Policy(secret="hidden"))


def _outward() -> str:
    """The address of this machine from which others are reached."""
    return own_address("", Endpoint("etcd", ("192.0.2.1:2379",)))


def test_the_interface_of_this_machines_address_is_found() -> None:
    try:
        address = socket.inet_aton(_outward())
    except OSError:
        pytest.skip("this machine has no way out")
    assert interface_of(socket.inet_ntoa(address)) in {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "192.0.2.77"])
def test_nobody_else_reaches_it_there(address: str) -> None:
    assert interface_of(address) == ""


def test_what_is_no_name_is_told_by_whoever_connects_and_not_here() -> None:
    assert own_address("", Endpoint("c10d", ("a..b:29400",))) == socket.getfqdn()


# ---------------------------------------------------------------- its goodbye and its events

PATIENCE = 60.0


@contextmanager
def _present(
    server: MemoryServer, name: str = "a", **identity: str
) -> Iterator[tuple[Participant, MemoryStore]]:
    """A node that has joined, and its store."""
    store, me = MemoryStore(server), NodeIdentity(name, "127.0.0.1", 1, **identity)  # type: ignore[arg-type]
    with closing(Participant(store, Policy(2, 2), me, lambda notice: None)) as part:
        part.say(Join())
        wait_for(lambda: store.read(NODES), PATIENCE, "its key")
        yield part, store


def _stop(server: MemoryServer, part: Participant) -> None:
    server.stop()
    wait_for(lambda: not part.state.contact.connected, PATIENCE, "the loss of the store")


@pytest.mark.parametrize("away", [False, True])
def test_a_store_that_is_away_is_not_waited_for(away: bool) -> None:
    known: list[bool] = []

    def leave(part: Participant) -> None:
        part.say(Goodbye())
        known.append(part.wait_for_goodbye(3600.0))

    server = MemoryServer()
    with _present(server) as (part, _):
        if away:
            _stop(server, part)
        leaving = threading.Thread(target=leave, args=(part,), daemon=True)
        leaving.start()
        leaving.join(PATIENCE)
    assert known == [not away]


def test_a_node_says_where_it_is() -> None:
    with _present(MemoryServer(), topology="z/r") as (_, store):
        (entry,) = store.read(NODES)
        assert NodeRecord.decode(entry.key, entry.value).topology == "z/r"


def _texts(store: MemoryStore) -> list[str]:
    entries = store.read(EVENTS)
    return sorted(EventRecord.decode(entry.key, entry.value).text for entry in entries)


def _held(part: Participant) -> list[str]:
    return [EventRecord.decode(put.key, put.value).text for put in part._kept.values()]


def _keep(part: Participant, text: str, key: str = "") -> None:
    part.record_event(f"{EVENTS}{key or text}", EventRecord(1.0, "x", 1, "a", text))


def test_events_are_kept_in_the_store() -> None:
    with _present(MemoryServer()) as (part, store):
        for text in ("one", "two"):
            _keep(part, text)
        wait_for(lambda: _texts(store) == ["one", "two"], PATIENCE, "both events")


_MOST = participant._KEPT_AT_MOST
_NUMBERS = [f"{number:02}" for number in range(_MOST + 2)]


@pytest.mark.parametrize(
    ("happened", "held"),
    [
        ([(number, number) for number in _NUMBERS], _NUMBERS[2:]),
        # There are few keys: while a store is away for long, each of them comes again and again.
        ([("one", "x"), ("two", "y"), ("three", "x")], ["two", "three"]),
    ],
    ids=["the newest of many", "the newest of each key"],
)
def test_events_from_while_the_store_was_away_are_kept_later(
    happened: list[tuple[str, str]], held: list[str]
) -> None:
    """It is then that people look for them."""
    server = MemoryServer()
    with _present(server) as (part, store):
        _stop(server, part)
        for text, key in happened:
            _keep(part, text, key)
        wait_for(lambda: _held(part) == held, PATIENCE, "a bound of what is held")
        server.resume()
        wait_for(lambda: _texts(store) == sorted(held), PATIENCE, "the newest events")


def test_the_last_events_are_kept_at_the_end() -> None:
    server = MemoryServer()
    with _present(server) as (part, _):
        _keep(part, "last")
    with _present(server, "b") as (_, store):
        assert _texts(store) == ["last"]
