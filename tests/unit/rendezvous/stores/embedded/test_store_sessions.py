"""The contents of an embedded store: sessions that come back, and that end."""

from __future__ import annotations

import pytest

from elastic_runtime.rendezvous.store_contract import Put, Transaction
from elastic_runtime.rendezvous.stores.embedded import store_sessions
from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.store_sessions import Session, Sessions


def put(sessions: Sessions, session: Session, value: bytes = b"v") -> wire.Message:
    transaction = Transaction(puts=(Put("job", value),))
    return sessions.answer("apply", wire.of_transaction(transaction), session.store)


def test_a_client_that_comes_back_has_its_session_again() -> None:
    sessions = Sessions()
    first = sessions.open("run", "a", 60.0)
    assert sessions.open("run", "a", 60.0) is first
    assert sessions.open("run", "b", 60.0) is not first
    assert sessions.open("other", "a", 60.0) is not first


def test_runs_see_nothing_of_each_other() -> None:
    sessions = Sessions()
    one, other = sessions.open("run", "a", 60.0), sessions.open("other", "a", 60.0)
    assert put(sessions, one)["ok"]
    assert [len(list(store.read(""))) for store in (one.store, other.store)] == [1, 0]
    assert sessions.answer("runs", {}, other.store) == {"runs": ["run"]}


def test_nothing_is_served_and_nothing_is_lost_while_the_store_pauses() -> None:
    sessions = Sessions()
    one = sessions.open("run", "a", 60.0)
    put(sessions, one)
    sessions.pause("the host is busy")
    assert "the host is busy" in str(put(sessions, one)["error"])
    late = sessions.open("late", "a", 60.0)
    assert "the host is busy" in str(put(sessions, late)["error"])
    sessions.resume()
    assert put(sessions, late)["ok"]
    assert len(list(one.store.read(""))) == 1


def test_a_full_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_sessions, "_MOST_STORED", 10)
    sessions = Sessions()
    one, other = sessions.open("run", "a", 60.0), sessions.open("other", "a", 60.0)
    assert put(sessions, one, b"123456")["ok"]
    assert "full" in str(put(sessions, other, b"123456")["error"]), "all runs count"
    assert put(sessions, other, b"1")["ok"]


def test_a_session_without_a_connection_and_a_lease_ends() -> None:
    sessions = Sessions()
    one, connected = sessions.open("run", "a", 60.0), sessions.open("run", "b", 60.0)
    connected.client = object()
    sessions.end_overdue()
    assert sessions.open("run", "a", 60.0) is not one
    assert sessions.open("run", "b", 60.0) is connected


def test_another_request_is_an_error() -> None:
    sessions = Sessions()
    with pytest.raises(wire.WireError, match="'fly'"):
        sessions.answer("fly", {}, sessions.open("run", "a", 60.0).store)
