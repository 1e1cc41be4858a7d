"""What every store must do, whatever it is made of; see ``rendezvous.store``.

A test module derives a class from ``StoreContract`` and gives it a fixture ``open_node``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from elastic_runtime.protocol.records import node_key
from elastic_runtime.rendezvous.core.membership_events import Join
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Expect,
    LeaseLost,
    MainLoopSilent,
    Put,
    Store,
    StoreEntry,
    StoreSnapshot,
    Transaction,
)
from tests.conformance.listening import Ear

# Seconds of a lease whose end is waited for: longer than a busy machine stands still.
LEASE = 3.0


@dataclass
class Node:
    """A store that was started, and what it hears."""

    key: str
    store: Store
    ear: Ear

    def put(self, key: str, value: bytes, version: int | None = None, leased: bool = False) -> bool:
        expects = () if version is None else (Expect(key, version),)
        return self.store.apply(Transaction(expects, (Put(key, value, leased),)))

    def delete(self, *keys: str) -> bool:
        return self.store.apply(Transaction(deletes=keys))

    def register(self, value: bytes = b"here") -> StoreEntry:
        self.store.beat()  # as an agent does while it waits for the store
        assert self.put(self.key, value, ABSENT, leased=True)
        self.ear.has(self.key, value)
        return self.ear.known[self.key]

    def entry(self, key: str) -> StoreEntry:
        (found,) = (entry for entry in self.store.read(key) if entry.key == key)
        return found


NewStore = Callable[[float], Store]
OpenNode = Callable[..., Node]


@contextmanager
def beating(beat: Callable[[], None]) -> Iterator[None]:
    """Beats all the time, as the main loop of an agent that is well."""
    over = threading.Event()

    def beats() -> None:
        while not over.wait(0.1):
            beat()

    thread = threading.Thread(target=beats)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def registered(open_node: OpenNode, names: str) -> list[Node]:
    """Nodes with these names, each of one letter, in the order of their registration."""
    nodes = [open_node(name) for name in names]
    for node in nodes:
        node.register()
    return nodes


@pytest.fixture
def open_node(new_store: NewStore) -> Iterator[OpenNode]:
    """Starts the store of a node of that name; ``new_store`` comes from the deriving module."""
    with ExitStack() as stack:

        def open_it(name: str, ttl: float = 5.0, wide: bool = False) -> Node:
            node = Node(f"nodes/{name}", new_store(ttl), Ear())
            stack.callback(node.store.close)
            node.store.start(node.key, node.ear)
            node.ear.hears(StoreSnapshot)
            if wide:
                node.store.look(True, frozenset())
                node.ear.until(lambda: node.ear.last_snapshot().wide, "a wide snapshot")
            return node

        yield open_it


class StoreContract:
    """The checks."""

    def test_begins_with_a_snapshot_of_what_is_there(self, open_node: OpenNode) -> None:
        first = open_node("a")
        for key in ("nodes/z", "nodes/a", "events/01", "job", "round", "outcome", "switch"):
            first.put(key, key.encode())
        snapshot = open_node("b").ear.last_snapshot()
        shown = ["nodes/z", "job", "round", "outcome", "switch"]  # the oldest, what is common
        assert [(e.key, e.value) for e in snapshot.entries] == [(k, k.encode()) for k in shown]
        assert not snapshot.wide
        assert not snapshot.forgot

    def test_a_key_is_created_once(self, open_node: OpenNode) -> None:
        nodes = [open_node(f"n{i}") for i in range(4)]
        start = threading.Barrier(len(nodes))
        won: list[int] = []

        def create(i: int) -> None:
            start.wait()
            if nodes[i].put("round", b"%d" % i, ABSENT):
                won.append(i)

        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(create, range(len(nodes))))
        assert len(won) == 1
        for node in nodes:
            node.ear.has("round", b"%d" % won[0])

    def test_no_update_is_lost(self, open_node: OpenNode) -> None:
        nodes = [open_node(f"n{i}") for i in range(3)]
        nodes[0].put("job", b"0")

        def increment(node: Node) -> None:
            done = 0
            while done < 20:
                found = node.entry("job")
                done += node.put("job", b"%d" % (int(found.value) + 1), found.version)

        with ThreadPoolExecutor(4) as pool:  # two threads use one of the stores
            list(pool.map(increment, [*nodes, nodes[0]]))
        assert nodes[0].entry("job").value == b"80"
        for node in nodes:
            node.ear.has("job", b"80")

    def test_every_write_changes_the_version_and_none_the_creation(
        self, open_node: OpenNode
    ) -> None:
        node = open_node("a")
        node.put("job", b"1")
        first = node.entry("job")
        assert node.put("job", b"1", first.version)
        second = node.entry("job")
        assert ABSENT != first.version != second.version != ABSENT
        assert first.created == second.created
        assert not node.put("job", b"2", first.version)
        assert not node.put("job", b"2", ABSENT)
        assert node.entry("job") == second

    def test_all_conditions_must_hold(self, open_node: OpenNode) -> None:
        node = open_node("a")
        own = node.register()
        puts = Put("round", b"r"), Put("switch", b"s")
        absent = Expect("round", ABSENT)
        assert not node.store.apply(Transaction((absent, Expect(node.key, own.version + 1)), puts))
        assert [entry.key for entry in node.store.read("")] == [node.key]
        assert node.store.apply(Transaction((absent, Expect(node.key, own.version)), puts))
        node.ear.has("switch", b"s")
        node.ear.has("round", b"r")

    def test_a_removal_may_have_a_condition(self, open_node: OpenNode) -> None:
        node = open_node("a")
        node.put("switch", b"s")
        version = node.entry("switch").version
        stale = Transaction((Expect("switch", version + 1),), (), ("switch",))
        assert not node.store.apply(stale)
        assert node.store.apply(Transaction((Expect("switch", version),), (), ("switch",)))
        assert node.store.read("switch") == ()

    def test_an_absent_key_may_be_deleted(self, open_node: OpenNode) -> None:
        node = open_node("a")
        assert node.delete("switch", "nodes/nobody")
        node.put("job", b"j")
        node.ear.has("job")
        assert set(node.ear.known) == {"job"}

    def test_the_order_of_creation_is_kept(self, open_node: OpenNode) -> None:
        a, b, c = registered(open_node, "abc")
        a.delete(a.key)
        a.ear.lacks(a.key)
        a.register(b"again")
        b.put(b.key, b"changed", leased=True)
        found = [entry.key for entry in c.store.read("nodes/")]
        assert found == [b.key, c.key, a.key]

    def test_a_node_follows_itself_the_oldest_and_what_is_common(self, open_node: OpenNode) -> None:
        oldest, middle, last = registered(open_node, "abc")
        last.store.look(False, frozenset())
        last.ear.has(oldest.key)
        middle.put(middle.key, b"unseen", leased=True)
        middle.put("job", b"seen")
        last.ear.has("job", b"seen")
        assert set(last.ear.known) == {"job", oldest.key, last.key}
        last.put(last.key, b"mine", leased=True)
        last.ear.has(last.key, b"mine")

    def test_a_node_known_to_be_dead_is_not_the_oldest(self, open_node: OpenNode) -> None:
        oldest, second, third, last = registered(open_node, "abcd")
        last.store.look(False, frozenset({oldest.key, second.key}))
        shown = {third.key, last.key}
        last.ear.until(lambda: set(last.ear.known) == shown, "only the next oldest")

    def test_one_oldest_after_the_other_is_followed(self, open_node: OpenNode) -> None:
        """Also when somebody in between has gone unseen, or has come a second time."""
        names = "abcdefghij"
        nodes = dict(zip(names, registered(open_node, names), strict=True))
        last = nodes["j"]
        last.store.look(False, frozenset())
        last.ear.has(nodes["a"].key)
        nodes["b"].delete(nodes["b"].key)
        nodes["d"].delete(nodes["d"].key)
        nodes["d"].register()  # the youngest of all now
        for oldest, following in itertools.pairwise("acefghi"):
            nodes[oldest].delete(nodes[oldest].key)
            both = {last.key, nodes[following].key}
            last.ear.until(lambda both=both: set(last.ear.known) == both, f"{following} leads")
        nodes["i"].delete(nodes["i"].key)
        last.ear.until(lambda: set(last.ear.known) == {last.key}, "nobody is older")

    def test_what_the_leader_says_of_itself_is_heard(self, open_node: OpenNode) -> None:
        leader = open_node("a", wide=True)
        leader.register()
        other = open_node("b")
        other.register()
        other.store.look(False, frozenset())
        other.ear.has(leader.key)
        leader.put(leader.key, b"gone", leased=True)
        other.ear.has(leader.key, b"gone")

    def test_who_looks_wide_follows_all_nodes(self, open_node: OpenNode) -> None:
        early = open_node("early")
        early.register()
        wide = open_node("wide", wide=True)
        wide.ear.has(early.key)
        late = open_node("late")
        late.register(b"1")
        wide.ear.has(late.key, b"1")
        late.put(late.key, b"2", leased=True)
        wide.ear.has(late.key, b"2")
        late.delete(late.key)
        wide.ear.lacks(late.key)
        wide.store.look(False, frozenset())
        wide.ear.until(lambda: not wide.ear.last_snapshot().wide, "a narrow snapshot")
        wide.store.look(True, frozenset())
        wide.ear.until(lambda: wide.ear.last_snapshot().wide, "a wide snapshot")
        early.put(early.key, b"3", leased=True)
        wide.ear.has(early.key, b"3")

    def test_each_change_is_delivered_once(self, open_node: OpenNode) -> None:
        writer, reader = open_node("a"), open_node("b")
        for i in range(50):
            writer.put("switch", b"%d" % i)
        reader.ear.has("switch", b"49")
        versions = [
            entry.version
            for event in reader.ear.events
            for entry in getattr(event, "puts", ())
            if entry.key == "switch"
        ]
        assert len(versions) == len(set(versions))
        assert versions == sorted(versions)

    def test_events_are_kept_but_not_followed(self, open_node: OpenNode) -> None:
        writer, reader = open_node("a", wide=True), open_node("b", wide=True)
        writer.put("events/1", b"e")
        writer.put("job", b"j")
        reader.ear.has("job")
        assert set(reader.ear.known) == {"job"}
        assert [entry.key for entry in reader.store.read("events/")] == ["events/1"]
        assert [entry.key for entry in reader.store.read("")] == ["events/1", "job"]

    def test_leased_keys_vanish_when_their_holder_closes(self, open_node: OpenNode) -> None:
        holder, other = open_node("a"), open_node("b", wide=True)
        assert holder.store.granted_ttl == 0
        holder.register()
        assert holder.store.granted_ttl >= 1
        holder.put("job", b"stays")
        other.ear.has(holder.key)
        holder.store.close()
        other.ear.lacks(holder.key)
        assert [entry.key for entry in other.store.read("")] == ["job"]
        holder.store.close()

    def test_a_key_taken_off_the_lease_stays(self, open_node: OpenNode) -> None:
        holder, other = open_node("a"), open_node("b", wide=True)
        holder.register()
        holder.put(holder.key, b"for good")
        holder.store.close()
        other.put("job", b"later")
        other.ear.has("job")
        assert other.entry(holder.key).value == b"for good"

    def test_following_another_key_gives_the_lease_up(self, open_node: OpenNode) -> None:
        node, other = open_node("a"), open_node("b", wide=True)
        node.register()
        other.ear.has(node.key)
        old, node.key = node.key, "nodes/again"
        node.store.follow(node.key)
        other.ear.lacks(old)
        node.register(b"second life")
        other.ear.has(node.key, b"second life")
        node.ear.until(lambda: old not in node.ear.known, "no trace of the first life")

    def test_beats_keep_the_lease_and_without_them_it_ends(self, open_node: OpenNode) -> None:
        alive, silent = open_node("alive", ttl=LEASE), open_node("silent", ttl=LEASE)
        other = open_node("b", wide=True)
        alive.register()
        silent.register()
        other.ear.has(alive.key)
        other.ear.has(silent.key)
        with beating(alive.store.beat):
            other.ear.lacks(silent.key)
            assert alive.key in other.ear.known
            assert alive.ear.count(LeaseLost) == 0
        silent.ear.hears(LeaseLost)
        silent.ear.lacks(silent.key)
        with pytest.raises(MainLoopSilent):
            silent.put(silent.key, b"back", ABSENT, leased=True)
        silent.put("job", b"needs no lease")
        silent.store.beat()
        silent.put(silent.key, b"back", ABSENT, leased=True)
        other.ear.has(silent.key, b"back")

    def test_a_participant_whose_main_loop_hangs_stays_away_until_it_turns(
        self, open_node: OpenNode, new_store: NewStore
    ) -> None:
        other, silent = open_node("b", wide=True), open_node("silent", ttl=LEASE)
        identity = NodeIdentity("hangs", "127.0.0.1", 1)
        participant = Participant(new_store(LEASE), Policy(), identity, lambda notice: None)
        try:
            participant.say(Join())
            key = node_key(participant.node)
            other.ear.has("round")
            other.ear.lacks(key)
            # A member comes back at once if nobody has gone on without it. It must not: another
            # lease of that length ends meanwhile.
            silent.store.beat()
            silent.register()
            other.ear.has(silent.key)
            other.ear.lacks(silent.key)
            assert key not in other.ear.known
            with beating(participant.beat):
                other.ear.has(key)
        finally:
            participant.close()
