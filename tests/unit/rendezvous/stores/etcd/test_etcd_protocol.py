"""What goes to etcd and what comes back, and how leases are kept, without an etcd."""

from __future__ import annotations

import http.client
import json
import queue
import ssl
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.clock import ManualClock
from elastic_runtime.config import Endpoint
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol import records
from elastic_runtime.rendezvous.store_contract import ABSENT, Changed, Expect, Put, Transaction
from elastic_runtime.rendezvous.stores.etcd import connection_diagnosis, etcd_errors
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import (
    access_refusal,
    etcd_complaint,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import as_store_error, canceled
from elastic_runtime.rendezvous.stores.etcd.etcd_keys import (
    MAX_OPERATIONS,
    OldNode,
    RunKeys,
    WatchScope,
    took_effect,
    with_read_back,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_lease import EtcdLease, LeaseKeeper
from elastic_runtime.rendezvous.stores.etcd.range_reads import read_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.rendezvous.stores.etcd.etcd_lease import KeepAlive


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
    own = records.NODES + "own"
    narrow, wide = (KEYS.always(WatchScope(own, wide)) for wide in (False, True))

    def followed(ranges: tuple[object, ...], key: str) -> bool:
        return any(KEYS.absolute(key) in what for what in ranges)  # type: ignore[operator]

    for key in (records.JOB, records.ROUND, records.SWITCH, records.OUTCOME, own):
        assert followed(narrow, key)
        assert followed(wide, key)
    other = records.NODES + "x" + name
    assert not followed(narrow, other)
    assert followed(wide, other)
    assert not followed(narrow, records.EVENTS + name)
    assert not followed(wide, records.EVENTS + name)


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
    kvs = [_kv(records.NODES + name, created=i + 2) for i, name in enumerate(nodes)]
    own = [kv for kv in kvs if KEYS.relative(kv.key) == "nodes/own"]
    result = KEYS.seen(
        _answers([_kv(records.JOB, created=5)], [], own, kvs[: len(without) + 1]), scope
    )
    assert result is not None
    assert result.leader == leader
    expected = {records.JOB} | ({leader} - {""}) | ({"nodes/own"} if own else set())
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
    known = [
        OldNode(records.NODES + name, created) for created, name in enumerate(old_nodes, start=1)
    ]
    scope = WatchScope("nodes/o", without=frozenset(records.NODES + name for name in without))
    request = KEYS.look(scope, known)[-1]
    if asked:
        assert (request.key, request.range_end) == (KEYS.absolute(records.NODES + asked), b"")
    else:
        assert request.range_end
        assert request.limit > len(without)
    kvs = [_kv(records.NODES + shown[0], created=shown[1])] if shown else []
    result = KEYS.seen(_answers([], [], [], kvs), scope, known)
    assert (result and result.leader) == leader
    if result and not asked:
        assert [first.key for first in result.old_nodes] == [
            records.NODES + name for name in (shown or "")[:1]
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


# ---------------------------------------------------------------- answers


WHERE = Endpoint("etcd", hosts=("etcd-1:2379",))
USER = Endpoint("etcd", hosts=("etcd-1:2379",), user="ann", password="secret")


class Refusal(grpc.RpcError):
    """As gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._answer = code, details

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str:
        return self._answer[1]


_Code = grpc.StatusCode
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
_REFUSED = "failed to connect to all addresses: [Connection refused]"


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (_Code.RESOURCE_EXHAUSTED, _NO_SPACE, "StoreFull", "compact and defragment"),
        (_Code.UNKNOWN, "etcdserver: request is too large", "RequestTooLarge", "--max-request"),
        (_Code.UNKNOWN, "etcdserver: no leader", "NoLeader", "start them again"),
        (_Code.UNKNOWN, "etcdserver: requested lease not found", "LeaseGone", "lease"),
        (_Code.UNKNOWN, "etcdserver: invalid auth token", "TokenRejected", "auth token"),
        (_Code.DEADLINE_EXCEEDED, "Deadline Exceeded", "EtcdTimeout", "did not answer in time"),
        (_Code.UNIMPLEMENTED, "", "NoEtcd", "does not speak etcd's v3 API"),
        (_Code.UNAVAILABLE, _REFUSED, "StoreUnavailable", "cannot be reached: Connection refused"),
    ],
)
def test_each_answer_is_a_class_and_says_what_to_do(
    code: grpc.StatusCode, details: str, kind: str, text: str
) -> None:
    found = as_store_error(Refusal(code, details), WHERE)
    assert type(found).__name__ == kind
    assert text in str(found) and "etcd-1:2379" in str(found)


def test_a_refused_user_is_named_but_not_the_password() -> None:
    refused = Refusal(_Code.UNKNOWN, "etcdserver: permission denied")
    assert "--etcd-user" in str(as_store_error(refused, WHERE))
    said = str(as_store_error(refused, USER))
    assert "'ann'" in said and "secret" not in said


def test_the_end_of_a_watch_has_the_same_classes() -> None:
    compacted = "etcdserver: mvcc: required revision has been compacted"
    ended = canceled(rpc.WatchResponse(cancel_reason=compacted), WHERE)
    assert type(ended) is etcd_errors.HistoryGone
    other = canceled(rpc.WatchResponse(cancel_reason="because"), WHERE)
    assert type(other) is StoreUnavailable and "because" in str(other)


# ---------------------------------------------------------------- whether it is a store for us

HOST, OTHER = "10.0.0.1:2379", "10.0.0.2:2379"
ETCD = (200, json.dumps({"etcdserver": "3.5.9"}).encode())


class Untrusted(ssl.SSLCertVerificationError):
    verify_message = "self-signed certificate"


Answers = dict[str, tuple[int, bytes] | Exception]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What each host answers over plain HTTP."""
    found: Answers = {}

    def fetch(where: tuple[str, int], context: object, path: str = "/version") -> tuple[int, bytes]:
        answer = found[f"{where[0]}:{where[1]}"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(connection_diagnosis, "_fetch", fetch)
    return found


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ETCD, ""),
        ((200, b'{"etcdserver": "2.3.8"}'), "is etcd 2.3.8, which has no v3 API"),
        ((404, b"not here"), "is no etcd: it answers /version with HTTP 404"),
        ((200, b"[]"), "is no etcd"),
        ((503, b"busy"), ""),  # a proxy whose etcd is not there yet
        (ConnectionRefusedError(), ""),  # it may come back
        (TimeoutError(), ""),
        (http.client.BadStatusLine("SSH-2.0"), "is no etcd: it does not speak HTTP"),
        (Untrusted(), "is not trusted (self-signed certificate)"),
    ],
)
def test_what_will_never_take_us_is_said(
    answers: Answers, answer: tuple[int, bytes] | Exception, why: str
) -> None:
    answers[HOST] = answer
    found = access_refusal(Endpoint("etcd", (HOST,)))
    assert why in found if why else found == ""


def test_one_host_that_may_take_us_is_enough(answers: Answers) -> None:
    answers[HOST], answers[OTHER] = (404, b""), TimeoutError()
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))) == ""
    answers[OTHER] = (404, b"")
    assert access_refusal(Endpoint("etcd", (HOST, OTHER))).count("is no etcd") == 2


def test_a_store_that_is_not_healthy_says_why(answers: Answers) -> None:
    endpoint = Endpoint("etcd", (HOST, OTHER))
    answers[HOST] = TimeoutError()
    answers[OTHER] = 503, b'{"health": "false", "reason": "ALARM NOSPACE"}'
    assert etcd_complaint(endpoint) == f"{OTHER} is not healthy: ALARM NOSPACE"
    answers[OTHER] = 200, b'{"health": "true"}'
    assert etcd_complaint(endpoint) == ""


# ---------------------------------------------------------------- several ranges as of one moment


class _Client:
    """Keeps requests until they are answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []

    def range_later(self, request: Any, came: Any, timeout: float, patient: bool) -> None:
        self.asked.append((request, came))

    def answer(self, number: int, revision: int) -> None:
        request, came = self.asked[number]
        answer = rpc.RangeResponse(count=len(request.key))
        answer.header.revision = revision
        came(answer)


def reading(*requests: Any) -> tuple[_Client, list[Any]]:
    client, done = _Client(), list[Any]()
    read_later(cast("Any", client), requests, done.append, patient=True)
    return client, done


A, BB, CCC = rpc.RangeRequest(key=b"a"), rpc.RangeRequest(key=b"bb"), rpc.RangeRequest(key=b"ccc")


def test_the_others_are_read_at_the_revision_of_the_first() -> None:
    client, _done = reading(A, BB, rpc.RangeRequest(key=b"ccc", revision=3))
    assert len(client.asked) == 1, "its revision is not known yet"
    client.answer(0, 7)
    assert [request.revision for request, _ in client.asked] == [0, 7, 3]
    assert BB.revision == 0, "a request of the caller's is not changed"


def test_answers_come_in_the_order_of_the_requests() -> None:
    client, done = reading(A, BB, CCC)
    client.answer(0, 7)
    client.answer(2, 9)
    assert not done
    client.answer(1, 8)
    assert [[answer.count for answer in answers] for answers in done] == [[1, 2, 3]]


def test_the_first_error_is_the_answer_and_comes_once() -> None:
    client, done = reading(A, BB, CCC)
    client.answer(0, 7)
    error = StoreUnavailable("away")
    client.asked[2][1](error)
    client.asked[1][1](StoreUnavailable("away, too"))
    assert done == [error]
    client, done = reading(A, BB)
    client.asked[0][1](error)
    assert done == [error] and len(client.asked) == 1
    client, done = reading(A)  # one range needs no other
    client.answer(0, 7)
    assert len(done[0]) == 1


# ---------------------------------------------------------------- leases

TTL = 0.3
TIMEOUT = 60.0


class Server:
    """Answers keep-alives with ``answer``, or not at all while that is None."""

    def __init__(self, answer: float | StoreUnavailable | None) -> None:
        self.answer = answer
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def __call__(self, lease: int, done: Callable[[int | StoreUnavailable], None]) -> None:
        self.asked.put(lease)
        if self.answer is not None:
            done(self.answer)  # type: ignore[arg-type]


def _kept(
    server: KeepAlive, ttl: float = TTL, since: float = 0.0, clock: ManualClock | None = None
) -> tuple[LeaseKeeper, EtcdLease, queue.SimpleQueue[EtcdLease]]:
    """A lease that was granted so many seconds ago, its keeper, and the leases that are lost."""
    keeper, lost = LeaseKeeper(clock), queue.SimpleQueue[EtcdLease]()
    lease = EtcdLease(7, ttl, keeper.now() - since, server, lost.put)
    keeper.keep(lease)
    return keeper, lease, lost


def test_a_lease_is_kept_as_long_as_its_owner_beats() -> None:
    server, clock = Server(1), ManualClock()  # it answers as etcd, in whole seconds
    keeper, lease, lost = _kept(server, clock=clock)
    for _ in range(10):
        clock.advance(TTL / 2)
        keeper.beat(lease)
        assert server.asked.get(timeout=TIMEOUT) == 7
    assert lost.empty()
    # Nobody beats any more: the lease ends, and is lost once.
    clock.advance(2 * TTL)
    with pytest.raises(queue.Empty):
        server.asked.get(timeout=TTL)
    clock.advance(1)
    assert lost.get(timeout=TIMEOUT) is lease
    with pytest.raises(queue.Empty):
        lost.get(timeout=TTL)


@pytest.mark.parametrize("answer", [None, StoreUnavailable("down")])
def test_a_lease_ends_without_an_answer(answer: StoreUnavailable | None) -> None:
    server = Server(answer)
    keeper, lease, lost = _kept(server)
    keeper.beat(lease)
    assert lost.get(timeout=TIMEOUT) is lease
    assert keeper.now() >= lease.deadline
    assert not server.asked.empty()


@pytest.mark.parametrize("answer", [0, -1])
def test_a_lease_that_the_server_does_not_know_is_lost_at_once(answer: int) -> None:
    keeper, lease, lost = _kept(Server(answer), 60.0, since=30.0)
    assert lost.get(timeout=TIMEOUT) is lease
    assert keeper.now() < lease.deadline


def test_a_deadline_counts_from_the_question_not_from_the_answer() -> None:
    answers: queue.SimpleQueue[Callable[[int | StoreUnavailable], None]] = queue.SimpleQueue()
    keeper, lease, lost = _kept(lambda _, done: answers.put(done), 3.0, since=1.0)
    done = answers.get(timeout=TIMEOUT)
    asked = keeper.now()
    done(5)
    assert lease.deadline <= asked + 5
    keeper.forget(lease)
    assert lost.empty()


def test_a_forgotten_lease_is_not_asked_for_nor_lost() -> None:
    server = Server(1)
    keeper, lease, lost = _kept(server)
    keeper.forget(lease)
    while not server.asked.empty():
        server.asked.get()
    with pytest.raises(queue.Empty):
        server.asked.get(timeout=TTL)
    assert lost.empty()
    # The keeper's thread has nothing left to do; it comes back for the next lease.
    keeper.keep(EtcdLease(8, TTL, keeper.now(), server, lost.put))
    assert server.asked.get(timeout=TIMEOUT) == 8
