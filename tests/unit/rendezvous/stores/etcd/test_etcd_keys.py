"""Keys, ranges, transactions and changes: what goes to etcd and what comes back, without etcd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol.records import EVENTS, JOB, NODES, OUTCOME, ROUND, SWITCH
from elastic_runtime.rendezvous.store_contract import ABSENT, Changed, Expect, Put, Transaction
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.etcd_keys import (
    MAX_OPERATIONS,
    OldNode,
    RunKeys,
    WatchScope,
    took_effect,
    with_read_back,
)

KEYS = RunKeys("elastic", "run")
NAMES = st.text("abc/é", max_size=6)


@given(NAMES, NAMES, NAMES)
def test_keys_come_back_as_they_went(prefix: str, run_id: str, key: str) -> None:
    keys = RunKeys(prefix, run_id)
    assert keys.relative(keys.absolute(key)) == key


@given(NAMES, NAMES, NAMES)
def test_no_run_lies_within_another(one: str, other: str, key: str) -> None:
    inside = RunKeys("p", other).absolute(key) in RunKeys("p", one).under("")
    assert inside == (one == other)


@given(NAMES)
def test_only_a_wide_view_follows_other_nodes_and_none_follows_events(name: str) -> None:
    own = NODES + "own"
    narrow, wide = (KEYS.always(WatchScope(own, wide)) for wide in (False, True))

    def followed(ranges: tuple[object, ...], key: str) -> bool:
        return any(KEYS.absolute(key) in what for what in ranges)  # type: ignore[operator]

    for key in (JOB, ROUND, SWITCH, OUTCOME, own):
        assert followed(narrow, key)
        assert followed(wide, key)
    other = NODES + "x" + name
    assert not followed(narrow, other)
    assert followed(wide, other)
    assert not followed(narrow, EVENTS + name)
    assert not followed(wide, EVENTS + name)


def _kv(key: str, value: bytes = b"", created: int = 1, version: int = 1) -> rpc.KeyValue:
    return rpc.KeyValue(
        key=KEYS.absolute(key), value=value, create_revision=created, mod_revision=version
    )


def _answers(*shown: list[rpc.KeyValue], revision: int = 9) -> list[rpc.RangeResponse]:
    header = rpc.ResponseHeader(revision=revision)
    return [rpc.RangeResponse(header=header, kvs=kvs, count=len(kvs)) for kvs in shown]


@pytest.mark.parametrize(
    ("nodes", "without", "leader"),
    [
        ([], set(), ""),
        (["own"], set(), ""),
        (["own", "b"], set(), ""),
        (["a", "own"], set(), "nodes/a"),
        (["a", "b", "own"], {"nodes/a"}, "nodes/b"),
        (["a", "own"], {"nodes/a"}, ""),
    ],
)
def test_the_oldest_that_is_not_left_out_is_followed(
    nodes: list[str], without: set[str], leader: str
) -> None:
    scope = WatchScope("nodes/own", without=frozenset(without))
    kvs = [_kv(NODES + name, created=i + 2) for i, name in enumerate(nodes)]
    own = [kv for kv in kvs if KEYS.relative(kv.key) == "nodes/own"]
    result = KEYS.seen(_answers([_kv(JOB, created=5)], [], own, kvs[: len(without) + 1]), scope)
    assert result is not None
    assert result.leader == leader
    expected = {JOB} | ({leader} - {""}) | ({"nodes/own"} if own else set())
    assert {entry.key for entry in result.entries} == expected
    assert [entry.created for entry in result.entries] == sorted(e.created for e in result.entries)
    assert len(result.followed) == 3 + bool(leader)


@pytest.mark.parametrize(
    ("old_nodes", "without", "asked", "shown", "leader"),
    [
        ("abc", "", "a", ("a", 1), "nodes/a"),
        ("abc", "a", "b", ("b", 2), "nodes/b"),
        ("abc", "", "a", None, None),  # gone
        ("abc", "", "a", ("a", 9), None),  # it has come a second time, and is the youngest now
        ("oab", "", "o", ("o", 1), ""),  # "o" is this node: nobody is older
        ("abc", "abc", "", ("d", 7), "nodes/d"),  # all of them are out of the question
        ("", "", "", ("a", 1), "nodes/a"),
    ],
)
def test_of_the_oldest_that_are_known_only_the_first_is_asked_for(
    old_nodes: str, without: str, asked: str, shown: tuple[str, int] | None, leader: str | None
) -> None:
    known = [OldNode(NODES + name, created) for created, name in enumerate(old_nodes, start=1)]
    scope = WatchScope("nodes/o", without=frozenset(NODES + name for name in without))
    request = KEYS.look(scope, known)[-1]
    if asked:
        assert (request.key, request.range_end) == (KEYS.absolute(NODES + asked), b"")
    else:
        assert request.range_end
        assert request.limit > len(without)
    kvs = [_kv(NODES + shown[0], created=shown[1])] if shown else []
    result = KEYS.seen(_answers([], [], [], kvs), scope, known)
    assert (result and result.leader) == leader
    if result and not asked:
        assert [first.key for first in result.old_nodes] == [
            NODES + name for name in (shown or "")[:1]
        ]


EVENTS_OF_ETCD = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20)


@given(EVENTS_OF_ETCD)
def test_changes_tell_every_event_once_and_in_order(happened: list[tuple[str, bool]]) -> None:
    events, expected = [], {}
    for version, (key, put) in enumerate(happened, start=1):
        kind = rpc.Event.PUT if put else rpc.Event.DELETE
        events.append(rpc.Event(type=kind, kv=_kv(key, version=version)))
        if put:
            expected[key] = version
        else:
            expected.pop(key, None)
    known: dict[str, int] = {}
    told: list[tuple[str, int]] = []
    deleted: list[str] = []
    for change in KEYS.changes(events):
        assert isinstance(change, Changed)
        # What the interface says: a key in both was written last.
        for key in change.deletes:
            known.pop(key, None)
        known.update((entry.key, entry.version) for entry in change.puts)
        told += [(entry.key, entry.version) for entry in change.puts]
        deleted += change.deletes
    assert known == expected
    assert told == [(key, i) for i, (key, put) in enumerate(happened, start=1) if put]
    assert deleted == [key for key, put in happened if not put]


def _answer(*shown: list[rpc.KeyValue]) -> rpc.TxnResponse:
    ranges = [rpc.RangeResponse(kvs=kvs, count=len(kvs)) for kvs in shown]
    return rpc.TxnResponse(responses=[rpc.ResponseOp(response_range=one) for one in ranges])


@given(st.integers(0, MAX_OPERATIONS), st.integers(0, 400))
def test_no_request_is_larger_than_etcd_takes(puts: int, deletes: int) -> None:
    transaction = Transaction(
        (Expect("round", ABSENT), Expect("job", 7)),
        tuple(Put(f"p{i}", b"v", leased=i == 0) for i in range(puts)),
        tuple(f"d{i}" for i in range(deletes)),
    )
    first, *rest = KEYS.writes(transaction, lease=5)
    assert [(KEYS.relative(c.key), c.mod_revision) for c in first.compare] == [
        ("round", ABSENT),
        ("job", 7),
    ]
    assert not any(request.compare for request in rest)
    assert all(len(request.success) <= MAX_OPERATIONS for request in (first, *rest))
    written = [op for request in (first, *rest) for op in request.success]
    assert [op.HasField("request_put") for op in written] == [True] * puts + [False] * deletes
    assert all(op.HasField("request_put") for op in first.success[:puts])
    assert [op.request_put.lease for op in written[:puts]] == [5, *[0] * (puts - 1)][:puts]


def test_keys_to_delete_may_be_named_twice() -> None:
    (request,) = KEYS.writes(Transaction(deletes=("a", "b", "a")), 0)
    assert len(request.success) == 2


SEAL = Transaction((Expect("round", 3),), (Put("round", b"ours"), Put("job", b"too")), ("nodes/x",))


@pytest.mark.parametrize(
    ("shown", "took"),
    [
        (([_kv("round", b"ours", version=8)], [_kv("job", b"too", version=8)], []), True),
        (([_kv("round", b"theirs", version=8)], [_kv("job", b"too", version=8)], []), False),
        # The same values, but not written together: somebody else's work.
        (([_kv("round", b"ours", version=8)], [_kv("job", b"too", version=4)], []), False),
        (([_kv("round", b"ours", version=8)], [_kv("job", b"too", version=8)], [_kv("x")]), False),
        (([], [], []), False),
    ],
)
def test_a_repeated_transaction_knows_its_own_traces(
    shown: tuple[list[rpc.KeyValue], ...], took: bool
) -> None:
    (request,) = KEYS.writes(SEAL, 0)
    asked = with_read_back(request)
    assert [op.request_range.key for op in asked.failure] == [
        KEYS.absolute(key) for key in ("round", "job", "nodes/x")
    ]
    assert asked.success == request.success
    assert took_effect(request, _answer(*shown)) is took


def test_a_mere_question_leaves_no_traces() -> None:
    (request,) = KEYS.writes(Transaction((Expect("round", 3),)), 0)
    assert not took_effect(request, _answer())
