"""The members of a large round lie in parts; each node reads what it needs, and no more."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import RecordError, StoreUnavailable
from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS, MISSING_MEMBERS_TIMEOUT
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import FaultReport
from elastic_runtime.protocol.round_records import Budget, GroupRecord, Member, RoundRecord
from elastic_runtime.rendezvous.core import round_parts
from elastic_runtime.rendezvous.core.membership_events import (
    Goodbye,
    LeftRound,
    LookForMembers,
    PartsGone,
    SampleKnown,
)
from elastic_runtime.rendezvous.core.round_parts import keys, split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.round_completer import RoundCompleter
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Found,
    Lost,
    Put,
    StoreEntry,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.crowd import NODES, TTL, Job
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_runtime.rendezvous.core.membership_events import Event
    from elastic_runtime.rendezvous.participant import Participant


def sealed(size: int, number: int = 7) -> RoundRecord:
    members = tuple(
        Member(f"{rank:032x}", f"node-{rank}", "10.0.0.1", 1 + rank % 8, 1000, 2000)
        for rank in range(size)
    )
    return RoundRecord(number, "life", members, 2000, "first round", sealed_by=members[0].node)


def told(events: Sequence[object]) -> RoundRecord:
    """The round in the last of the events."""
    event = events[-1]
    assert isinstance(event, Changed | StoreSnapshot)
    entries = event.puts if isinstance(event, Changed) else event.entries
    return RoundRecord.decode(
        records.ROUND, next(it for it in entries if it.key == records.ROUND).value
    )


class Shelf:
    """A large round in the store, which can be read or not, and a node that is told of it."""

    def __init__(self, size: int, number: int = 7) -> None:
        self.last = sealed(size, number)
        self.head, writes = split_round(self.last, Layout())
        puts = [put for write in writes for put in write.puts]
        self.entries = [StoreEntry(put.key, put.value, 1, 1) for put in puts]
        self.round = StoreEntry(records.ROUND, self.head.encode(), 1, 1)
        self.reads: list[str] = []
        self.serves = True
        self.completer = RoundCompleter(self.read, Layout().keepers)

    def node(self, rank: int) -> str:
        return self.last.members[rank].node

    def read(self, prefix: str) -> Sequence[StoreEntry]:
        if not self.serves:
            raise StoreUnavailable("no answer")
        self.reads.append(prefix)
        return [entry for entry in self.entries if entry.key.startswith(prefix)]

    def takes(
        self, *events: Event, node: str = "nobody", wide: bool = False, now: float = 0.0
    ) -> list[Event]:
        """What the node is told of these events at this moment."""
        return list(self.completer.take(events, node, wide, now))

    def changed(self, version: int = 1) -> Changed:
        """The record of the round was written."""
        return Changed((replace(self.round, version=version),))

    def shown(self, node: str, wide: bool = False) -> RoundRecord:
        """The round as another node comes to know it."""
        self.completer = RoundCompleter(self.read, Layout().keepers)
        shown = told(self.takes(self.changed(), node=node, wide=wide))
        assert not self.completer.owed
        return shown


# What etcd takes in one request by default (``--max-request-bytes``).
REQUEST = 1_500_000


def test_a_member_knows_its_place_from_one_part_and_others_know_all() -> None:
    shelf = Shelf(300)
    last = shelf.last
    keepers = 0
    for rank, member in enumerate(last.members):
        shelf.reads.clear()
        shown = shelf.shown(member.node)
        assert shown.rank_of(member.node) == rank
        assert shown.member(rank) == member
        assert shown.first_worker(rank) == last.first_worker(rank)
        assert (shown.size, shown.world_size) == (300, last.world_size)
        assert shown.members[0] == last.members[0]
        assert shown.identity == Shelf(300).shown("nobody").identity
        assert shown.whole == (len(shelf.reads) == 2)
        keepers += shown.whole
        if not shown.whole:
            with pytest.raises(LookupError, match="is not known here"):
                shown.member(next(r for r in range(300) if r not in shown.ranks))
    assert keepers == Layout().keepers
    for whole in (shelf.shown("nobody"), shelf.shown(last.members[5].node, wide=True)):
        assert whole.members == last.members
        assert whole.first_worker(299) == last.first_worker(299)


def test_no_request_grows_with_the_round() -> None:
    head, writes = split_round(sealed(10_000), Layout())
    assert len(head.encode()) < 3000
    assert max(sum(len(put.value) for put in write.puts) for write in writes) < REQUEST / 2
    assert max(len(write.puts) for write in writes) <= 128
    assert len({put.key for write in writes for put in write.puts}) == head.parts


def test_a_small_round_is_one_record_as_ever() -> None:
    head, writes = split_round(sealed(128), Layout())
    assert (head, writes) == (sealed(128), ())
    assert json.loads(head.encode())["v"] == 1


def test_who_does_not_know_of_parts_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(129)
    monkeypatch.setattr(records, "FORMAT", 1)
    for data, cls in ((shelf.round.value, RoundRecord), (shelf.entries[0].value, GroupRecord)):
        with pytest.raises(RecordError, match="its format is 2, this program reads up to 1"):
            cls.decode(records.ROUND, data)


def test_the_same_members_lie_in_the_same_place_and_others_elsewhere() -> None:
    one, again, other = (split_round(sealed(size), Layout())[0] for size in (200, 200, 201))
    assert one.group == again.group != other.group
    assert not set(round_parts.keys(one)) & set(round_parts.keys(other))


def _full(shelf: Shelf) -> RoundRecord:
    """The round in parts, with all its members."""
    head = shelf.head
    return replace(shelf.last, group=head.group, parts=head.parts, nodes=head.nodes)


def _looked(last: RoundRecord, node: str) -> set[str]:
    return {member.node for member in round_parts.looked_for(last)(node)}


def test_of_a_large_round_each_node_looks_for_a_bounded_number_of_others() -> None:
    last = _full(Shelf(2000))
    looked = {m.node: {o.node for o in round_parts.looked_for(last)(m.node)} for m in last.members}
    assert max(map(len, looked.values())) < 400
    asked = Counter(one for found in looked.values() for one in found)
    assert max(asked.values()) < 400  # nobody is asked by more, either
    node = last.members[7].node
    later = [_looked(replace(last, number=number), node) for number in range(20)]
    assert len(set().union(*later)) == 2000  # and all of them sooner or later
    assert later[8] != looked[node]


def test_after_rounds_without_progress_more_are_looked_for_until_it_is_all() -> None:
    """A job gives up after five of them: by then a single pair that is cut must have been found."""
    last = _full(Shelf(2000))
    rounds = [replace(last, budget=Budget(fruitless=n)) for n in range(MAX_FRUITLESS_ROUNDS)]
    counts = [len(_looked(one, last.members[7].node)) for one in rounds]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[2] < counts[-1] == 2000


@pytest.mark.parametrize("size", [100, 200])
def test_of_a_round_in_few_parts_each_node_looks_for_all_others(size: int) -> None:
    last = _full(Shelf(size))
    assert _looked(last, "nobody") == {member.node for member in last.members}


def test_ranks_that_cannot_be_are_refused() -> None:
    body = json.loads(Shelf(200).round.value)
    for wrong in ({"ranks": [0]}, {"nodes": 3}, {"parts": 0}):
        with pytest.raises(RecordError):
            RoundRecord.decode(records.ROUND, json.dumps({**body, **wrong}).encode())


# ---------------------------------------------------------------- read before the node hears of it


@pytest.mark.parametrize("wide", [True, False])
def test_what_was_read_once_is_not_read_again(wide: bool) -> None:
    shelf = Shelf(200)
    shelf.takes(StoreSnapshot((shelf.round,), wide), node=shelf.node(1), wide=wide)
    reads = len(shelf.reads)
    shelf.serves = False
    again = shelf.takes(StoreSnapshot((shelf.round,), False), node=shelf.node(1), now=1.0)
    assert told(again).rank_of(shelf.node(1)) == 1
    assert len(shelf.reads) == reads


def test_until_a_round_can_be_read_nothing_is_told_of_it_and_nothing_after_it() -> None:
    shelf = Shelf(200)
    shelf.serves = False
    node = shelf.node(1)
    job = StoreEntry("job", b"j", 1, 1)
    snapshot, lost = StoreSnapshot((job, shelf.round), False), Lost("no answer")
    assert shelf.takes(snapshot, lost, node=node) == [lost]  # and not: there is none
    later = Changed((StoreEntry("switch", b"s", 2, 2),))
    assert shelf.takes(later, node=node, now=100.0) == []  # however long it takes
    assert shelf.completer.owed
    shelf.serves = True
    assert shelf.takes(lost, node=node, now=200.0) == [lost]
    assert shelf.completer.due == float("inf")  # there is no use in asking
    first, second, found = shelf.takes(Found(), node=node, now=300.0)
    assert found == Found()
    assert isinstance(first, StoreSnapshot)
    assert told([first]).rank_of(node) == 1
    assert (second, shelf.completer.owed) == (later, False)


def test_a_store_that_does_not_answer_is_asked_less_and_less_often() -> None:
    shelf = Shelf(200)
    shelf.entries = []
    shelf.takes(shelf.changed())
    tries = [shelf.completer.due]
    for _ in range(8):
        shelf.completer._missed_at = None
        shelf.takes(now=tries[-1])
        tries.append(shelf.completer.due)
    assert tries[-1] - tries[-2] > 4 * tries[0]
    assert shelf.takes(now=tries[-1] - 0.01) == []
    assert shelf.completer.due == tries[-1]


def test_a_round_whose_members_are_gone_is_unreadable_after_a_while() -> None:
    shelf = Shelf(200)
    shelf.entries.pop()
    assert shelf.takes(shelf.changed()) == []
    assert shelf.takes(now=MISSING_MEMBERS_TIMEOUT) == []
    late, gone = shelf.takes(now=MISSING_MEMBERS_TIMEOUT + 2)
    assert gone == PartsGone(1)
    assert told([late]).members == shelf.last.members[: Layout().first]  # as the record says
    # The next round is another matter.
    following = Shelf(210, number=8)
    shelf.entries = following.entries
    assert told(shelf.takes(following.changed(), now=10.0)).whole


def test_who_knows_all_members_sees_at_once_that_they_are_gone_from_the_store() -> None:
    shelf = Shelf(200)
    assert told(shelf.takes(shelf.changed())).whole
    shelf.entries = []
    # Somebody has written it again, without its parts.
    shown, gone = shelf.takes(shelf.changed(version=2), now=1.0)
    assert (gone, told([shown]).members) == (PartsGone(2), shelf.last.members)


def test_who_seals_a_round_knows_its_members() -> None:
    shelf = Shelf(200)
    shelf.serves = False
    head, parts = split_round(shelf.last, Layout())
    shelf.completer.wrote((*parts, Transaction(puts=(Put(records.ROUND, head.encode()),))))
    shown = told(shelf.takes(shelf.changed(), node=shelf.node(0), wide=True))
    assert shown.members == shelf.last.members


def test_a_round_that_is_deleted_meanwhile_does_not_come_back() -> None:
    shelf = Shelf(200)
    shelf.serves = False
    shelf.takes(shelf.changed())
    shelf.serves = True
    gone = Changed((), (records.ROUND,))
    assert shelf.takes(gone, now=10.0) == [Changed(), gone]
    assert not shelf.completer.owed


def test_only_the_newest_of_several_rounds_is_read() -> None:
    older, newer = Shelf(200), Shelf(190, number=8)
    shown = newer.takes(StoreSnapshot((older.round,), False), newer.changed())
    assert [told([event]).number for event in shown] == [8, 8]


def test_all_members_are_shown_to_who_asks_for_them() -> None:
    shelf = Shelf(200)
    assert not told(shelf.takes(shelf.changed(), node=shelf.node(1))).whole
    shelf.completer.ask(1.0)
    assert told(shelf.takes(node=shelf.node(1), now=1.0)).whole
    assert not shelf.completer.wanted


def test_a_member_reads_no_more_than_whom_it_is_to_look_for() -> None:
    shelf = Shelf(2000)
    node, full = shelf.node(1), _full(shelf)
    shelf.takes(shelf.changed(), node=node)
    shelf.reads.clear()
    shelf.completer.ask(1.0, sample=True)
    shown, near = shelf.takes(node=node, now=1.0)
    assert near == SampleKnown(full.group)
    assert _looked(full, node) <= {member.node for member in told([shown]).members}
    assert set(shelf.reads) <= {*round_parts.keys(full)}
    assert len(shelf.reads) < 20
    shelf.entries = []
    shelf.completer.ask(2.0, sample=True)
    assert shelf.takes(node=node, now=2.0) == []  # not all of them are there


def test_a_part_that_cannot_be_read_is_as_good_as_none() -> None:
    shelf = Shelf(200)
    shelf.entries = [replace(entry, value=b"rubbish") for entry in shelf.entries]
    assert shelf.takes(shelf.changed(), node=shelf.node(50)) == []
    assert shelf.completer.owed  # and not: it is no member


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("wrong", ["another part", "another name", "one less"])
def test_a_part_that_is_not_what_was_written_counts_as_missing_and_is_said(
    wide: bool, wrong: str
) -> None:
    shelf = Shelf(200)
    node = shelf.node(50)
    own = round_parts.keys(shelf.head)[round_parts.part_of(node, shelf.head.parts)]
    (place,) = [at for at, entry in enumerate(shelf.entries) if entry.key == own]
    right = shelf.entries[place].value
    value = {
        "another part": shelf.entries[place - 1].value,
        "another name": right.replace(b"node-50", b"node-51"),
        "one less": right[: right.rindex(b",")] + b"}",
    }[wrong]
    shelf.entries[place] = replace(shelf.entries[place], value=value)
    assert shelf.takes(shelf.changed(), node=node, wide=wide) == []
    *_, gone = shelf.takes(node=node, wide=wide, now=MISSING_MEMBERS_TIMEOUT + 2)
    assert isinstance(gone, PartsGone)
    assert gone.wrong == {own: "its hash is that of something else"}


def test_what_a_member_knew_of_itself_it_still_knows_when_the_parts_are_gone() -> None:
    shelf = Shelf(200)
    node = shelf.node(51)
    shelf.takes(shelf.changed(), node=node)
    shelf.entries = []
    assert shelf.takes(shelf.changed(version=2), node=node, now=1.0) == []
    shown, _ = shelf.takes(node=node, now=1.0 + MISSING_MEMBERS_TIMEOUT + 1)
    assert told([shown]).rank_of(node) == 51


# ---------------------------------------------------------------- over the store in memory


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def job(server: MemoryServer) -> Iterator[Job]:
    job = Job(lambda: MemoryStore(server, TTL), server._read)
    for _ in range(NODES):
        job.add()
    yield job
    for part in job.parts:
        part.close()


def _leaves(part: Participant) -> None:
    fault = FaultReport(1, records.PLANNED, "to see the next round")
    part.say(LeftRound(1, fault, stays=False))
    part.say(Goodbye())
    assert part.wait_for_goodbye(10)


def test_all_members_agree_and_the_former_round_leaves_nothing_behind(job: Job) -> None:
    first = job.wait(1, NODES)
    known = sorted(len(one.round.members) for one in first.values())
    assert known[0] < NODES == known[-1]  # some know all, others only what they need
    part = job.of(1, lambda one: not one.round.whole)[0]
    _leaves(part)
    second = job.wait(2, NODES - 1)
    assert part.node not in second
    assert job.groups() == set(keys(next(iter(second.values())).round))


def test_a_member_that_is_to_look_for_the_others_learns_who_they_are(job: Job) -> None:
    job.wait(1, NODES)
    part = job.of(1, lambda one: not one.round.whole)[0]
    assert part.state.own.round is not None
    assert not part.state.own.round.whole
    part.say(LookForMembers(1))
    wait_for(lambda: bool(job.surveyed), 30, "what it found")
    assert part.state.own.round.whole


def test_a_store_that_forgets_is_given_all_of_the_round_by_who_keeps_it(
    job: Job, server: MemoryServer
) -> None:
    seen = job.wait(1, NODES)
    lead = job.of(1, lambda one: one.group_rank == 0)[0]
    before = job.groups()
    server.stop()
    job.parts.remove(lead)
    lead.close()  # the store forgets, and who led is gone
    server.forget()
    server.resume()
    wait_for(lambda: job.groups() == before, 30, "the parts of the round")
    wait_for(lambda: len(job.sealed.get(2, {})) == NODES - 1, 60, "the next round")
    second = job.wait(2, NODES - 1)
    assert not job.excluded
    assert {one.round.incarnation for one in second.values()} == {
        one.round.incarnation for one in seen.values()
    }


def test_parts_that_are_gone_are_given_back_when_somebody_needs_them(job: Job) -> None:
    job.wait(1, NODES)
    lead = job.of(1, lambda one: one.group_rank == 0)[0]
    heir = job.of(1, lambda one: one.group_rank == 1)[0]
    assert not job.sealed[1][heir.node].round.whole  # who leads next does not know all members
    heir._store.apply(Transaction(deletes=tuple(job.groups())))
    _leaves(lead)
    job.wait(2, NODES - 1)
    assert not job.excluded
