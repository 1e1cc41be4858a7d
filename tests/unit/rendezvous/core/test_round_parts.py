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
    """Entries that can be read, and which prefixes were."""

    def __init__(self, last: RoundRecord, layout: Layout) -> None:
        head, writes = split_round(last, layout)
        puts = [put for write in writes for put in write.puts]
        self.entries = [StoreEntry(put.key, put.value, 1, 1) for put in puts]
        self.round_record = head
        self.round = StoreEntry(records.ROUND, head.encode(), 1, 1)
        self.reads: list[str] = []
        self.serves = True

    def read(self, prefix: str) -> Sequence[StoreEntry]:
        if not self.serves:
            raise StoreUnavailable("no answer")
        self.reads.append(prefix)
        return [entry for entry in self.entries if entry.key.startswith(prefix)]

    def shown(self, node: str, wide: bool = False) -> RoundRecord:
        completer = RoundCompleter(self.read, Layout().keepers)
        shown = told(completer.take([Changed((self.round,))], node, wide, 0.0))
        assert not completer.owed
        return shown


# What etcd takes in one request by default (``--max-request-bytes``).
REQUEST = 1_500_000


def test_a_member_knows_its_place_from_one_part_and_others_know_all() -> None:
    last = sealed(300)
    shelf = Shelf(last, Layout())
    keepers = 0
    for rank, member in enumerate(last.members):
        shelf.reads.clear()
        shown = shelf.shown(member.node)
        assert shown.rank_of(member.node) == rank
        assert shown.member(rank) == member
        assert shown.first_worker(rank) == last.first_worker(rank)
        assert (shown.size, shown.world_size) == (300, last.world_size)
        assert shown.members[0] == last.members[0]
        assert shown.identity == Shelf(last, Layout()).shown("nobody").identity
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
    head, writes = split_round(sealed(129), Layout())
    monkeypatch.setattr(records, "FORMAT", 1)
    for data, cls in [(head.encode(), RoundRecord), (writes[0].puts[0].value, GroupRecord)]:
        with pytest.raises(RecordError, match="its format is 2, this program reads up to 1"):
            cls.decode(records.ROUND, data)


def test_the_same_members_lie_in_the_same_place_and_others_elsewhere() -> None:
    one, again, other = (split_round(sealed(size), Layout())[0] for size in (200, 200, 201))
    assert one.group == again.group != other.group
    assert not set(round_parts.keys(one)) & set(round_parts.keys(other))


def test_of_a_large_round_each_node_looks_for_a_bounded_number_of_others() -> None:
    head, _ = split_round(sealed(2000), Layout())
    last = replace(sealed(2000), group=head.group, parts=head.parts, nodes=2000)
    looked = {m.node: {o.node for o in round_parts.looked_for(last)(m.node)} for m in last.members}
    assert max(map(len, looked.values())) < 400
    asked = Counter(one for found in looked.values() for one in found)
    assert max(asked.values()) < 400  # nobody is asked by more, either
    again = replace(last, number=8)
    node = last.members[7].node
    known = {
        m.node for n in range(20) for m in round_parts.looked_for(replace(last, number=n))(node)
    }
    assert len(known) == 2000  # and all of them sooner or later
    assert {m.node for m in round_parts.looked_for(again)(node)} != looked[node]


def test_after_rounds_without_progress_more_are_looked_for_until_it_is_all() -> None:
    """A job gives up after five of them: by then a single pair that is cut must have been found."""
    head, _ = split_round(sealed(2000), Layout())
    last = replace(sealed(2000), group=head.group, parts=head.parts, nodes=2000)
    rounds = [
        replace(last, budget=Budget(fruitless=count)) for count in range(MAX_FRUITLESS_ROUNDS)
    ]
    counts = [len(round_parts.looked_for(one)(last.members[7].node)) for one in rounds]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[2] < counts[-1] == 2000


@pytest.mark.parametrize("size", [100, 200])
def test_of_a_round_in_few_parts_each_node_looks_for_all_others(size: int) -> None:
    last = sealed(size)
    head, _ = split_round(last, Layout())
    last = replace(last, group=head.group, parts=head.parts, nodes=head.nodes)
    assert {m.node for m in round_parts.looked_for(last)("nobody")} == {
        m.node for m in last.members
    }


def test_ranks_that_cannot_be_are_refused() -> None:
    head, _ = split_round(sealed(200), Layout())
    body = json.loads(head.encode())
    for wrong in ({"ranks": [0]}, {"nodes": 3}, {"parts": 0}):
        with pytest.raises(RecordError):
            RoundRecord.decode(records.ROUND, json.dumps({**body, **wrong}).encode())


# ---------------------------------------------------------------- read before the node hears of it


@pytest.mark.parametrize("wide", [True, False])
def test_what_was_read_once_is_not_read_again(wide: bool) -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    completer = RoundCompleter(shelf.read, 8)
    completer.take([StoreSnapshot((shelf.round,), wide)], last.members[1].node, wide, 0.0)
    reads = len(shelf.reads)
    shelf.serves = False
    again = completer.take([StoreSnapshot((shelf.round,), False)], last.members[1].node, False, 1.0)
    assert told(again).rank_of(last.members[1].node) == 1
    assert len(shelf.reads) == reads


def test_until_a_round_can_be_read_nothing_is_told_of_it_and_nothing_after_it() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.serves = False
    node = last.members[1].node
    completer = RoundCompleter(shelf.read, 8)
    job = StoreEntry("job", b"j", 1, 1)
    snapshot, lost = StoreSnapshot((job, shelf.round), False), Lost("no answer")
    assert completer.take([snapshot, lost], node, False, 0.0) == [lost]  # and not: there is none
    later = Changed((StoreEntry("switch", b"s", 2, 2),))
    assert completer.take([later], node, False, 100.0) == []  # however long it takes
    assert completer.owed
    shelf.serves = True
    again = Lost("no answer")
    assert completer.take([again], node, False, 200.0) == [again]
    assert completer.due == float("inf")  # there is no use in asking
    first, second, found = completer.take([Found()], node, False, 300.0)
    assert found == Found()
    assert isinstance(first, StoreSnapshot)
    assert told([first]).rank_of(node) == 1
    assert (second, completer.owed) == (later, False)


def test_a_store_that_does_not_answer_is_asked_less_and_less_often() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.entries = []
    completer = RoundCompleter(shelf.read, 8)
    completer.take([Changed((shelf.round,))], "nobody", False, 0.0)
    tries = [completer.due]
    for _ in range(8):
        completer._missed_at = None
        completer.take([], "nobody", False, tries[-1])
        tries.append(completer.due)
    assert tries[-1] - tries[-2] > 4 * tries[0]
    assert completer.take([], "nobody", False, tries[-1] - 0.01) == []
    assert completer.due == tries[-1]


def test_a_round_whose_members_are_gone_is_unreadable_after_a_while() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.entries.pop()
    completer = RoundCompleter(shelf.read, 8)
    assert completer.take([Changed((shelf.round,))], "nobody", False, 0.0) == []
    assert completer.take([], "nobody", False, MISSING_MEMBERS_TIMEOUT) == []
    late, gone = completer.take([], "nobody", False, MISSING_MEMBERS_TIMEOUT + 2)
    assert gone == PartsGone(1)
    assert told([late]).members == last.members[: Layout().first]  # as far as the record says
    # The next round is another matter.
    following = Shelf(sealed(210, number=8), Layout())
    shelf.entries = following.entries
    assert told(completer.take([Changed((following.round,))], "nobody", False, 10.0)).whole


def test_who_knows_all_members_sees_at_once_that_they_are_gone_from_the_store() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    completer = RoundCompleter(shelf.read, 8)
    assert told(completer.take([Changed((shelf.round,))], "nobody", False, 0.0)).whole
    shelf.entries = []
    anew = replace(shelf.round, version=2)  # somebody has written it again, without its parts
    shown, gone = completer.take([Changed((anew,))], "nobody", False, 1.0)
    assert (gone, told([shown]).members) == (PartsGone(2), last.members)


def test_who_seals_a_round_knows_its_members() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.serves = False
    completer = RoundCompleter(shelf.read, 8)
    head, parts = split_round(last, Layout())
    completer.wrote((*parts, Transaction(puts=(Put(records.ROUND, head.encode()),))))
    node = last.members[0].node
    assert told(completer.take([Changed((shelf.round,))], node, True, 0.0)).members == last.members


def test_a_round_that_is_deleted_meanwhile_does_not_come_back() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.serves = False
    completer = RoundCompleter(shelf.read, 8)
    completer.take([Changed((shelf.round,))], "nobody", False, 0.0)
    shelf.serves = True
    gone = Changed((), (records.ROUND,))
    assert completer.take([gone], "nobody", False, 10.0) == [Changed(), gone]
    assert not completer.owed


def test_only_the_newest_of_several_rounds_is_read() -> None:
    older, newer = Shelf(sealed(200), Layout()), Shelf(sealed(190, number=8), Layout())
    completer = RoundCompleter(newer.read, 8)
    told_now = [StoreSnapshot((older.round,), False), Changed((newer.round,))]
    shown = completer.take(told_now, newer.round.key, False, 0.0)
    assert [told([event]).number for event in shown] == [8, 8]


def test_all_members_are_shown_to_who_asks_for_them() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    completer = RoundCompleter(shelf.read, 8)
    node = last.members[1].node
    assert not told(completer.take([Changed((shelf.round,))], node, False, 0.0)).whole
    completer.ask(1.0)
    assert told(completer.take([], node, False, 1.0)).whole
    assert not completer.wanted


def test_a_member_reads_no_more_than_whom_it_is_to_look_for() -> None:
    last = sealed(2000)
    shelf = Shelf(last, Layout())
    completer = RoundCompleter(shelf.read, 8)
    node = last.members[1].node
    completer.take([Changed((shelf.round,))], node, False, 0.0)
    shelf.reads.clear()
    completer.ask(1.0, sample=True)
    shown, near = completer.take([], node, False, 1.0)
    assert near == SampleKnown(shelf.round_record.group)
    full = replace(last, group=shelf.round_record.group, parts=shelf.round_record.parts, nodes=2000)
    wanted = {m.node for m in round_parts.looked_for(full)(node)}
    assert wanted <= {m.node for m in told([shown]).members}
    assert set(shelf.reads) <= {*round_parts.keys(full)}
    assert len(shelf.reads) < 20
    shelf.entries = []
    completer.ask(2.0, sample=True)
    assert completer.take([], node, False, 2.0) == []  # not all of them are there


def test_a_part_that_cannot_be_read_is_as_good_as_none() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.entries = [StoreEntry(entry.key, b"rubbish", 1, 1) for entry in shelf.entries]
    completer = RoundCompleter(shelf.read, 8)
    assert completer.take([Changed((shelf.round,))], last.members[50].node, False, 0.0) == []
    assert completer.owed  # and not: it is no member


@pytest.mark.parametrize("wide", [True, False])
def test_a_part_that_is_not_what_was_written_counts_as_missing_and_is_said(wide: bool) -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    node = last.members[50].node
    own = round_parts.keys(shelf.round_record)[round_parts.part_of(node, shelf.round_record.parts)]
    (place,) = [at for at, entry in enumerate(shelf.entries) if entry.key == own]
    right, other = shelf.entries[place].value, shelf.entries[place - 1].value
    for wrong in (other, right.replace(b"node-50", b"node-51"), right[: right.rindex(b",")] + b"}"):
        shelf.entries[place] = replace(shelf.entries[place], value=wrong)
        completer = RoundCompleter(shelf.read, 8)
        assert completer.take([Changed((shelf.round,))], node, wide, 0.0) == []
        *_, gone = completer.take([], node, wide, MISSING_MEMBERS_TIMEOUT + 2)
        assert isinstance(gone, PartsGone)
        assert gone.wrong == {own: "its hash is that of something else"}


def test_what_a_member_knew_of_itself_it_still_knows_when_the_parts_are_gone() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    node = last.members[51].node
    completer = RoundCompleter(shelf.read, 8)
    completer.take([Changed((shelf.round,))], node, False, 0.0)
    shelf.entries = []
    anew = Changed((replace(shelf.round, version=2),))
    assert completer.take([anew], node, False, 1.0) == []
    shown, _ = completer.take([], node, False, 1.0 + MISSING_MEMBERS_TIMEOUT + 1)
    assert told([shown]).rank_of(node) == 51


# ---------------------------------------------------------------- over the store in memory


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def job(server: MemoryServer) -> Iterator[Job]:
    job = Job(lambda: MemoryStore(server, TTL), server._read)
    yield job
    for part in job.parts:
        part.close()


def test_all_members_agree_and_the_former_round_leaves_nothing_behind(job: Job) -> None:
    for _ in range(NODES):
        job.add()
    first = job.wait(1, NODES)
    known = sorted(len(one.round.members) for one in first.values())
    assert known[0] < NODES == known[-1]  # some know all, others only what they need
    part = job.of(1, lambda one: not one.round.whole)[0]
    fault = FaultReport(1, records.PLANNED, "to see the next round")
    part.say(LeftRound(1, fault, stays=False))
    part.say(Goodbye())
    assert part.wait_for_goodbye(10)
    second = job.wait(2, NODES - 1)
    assert part.node not in second
    assert job.groups() == set(keys(next(iter(second.values())).round))


def test_a_member_that_is_to_look_for_the_others_learns_who_they_are(job: Job) -> None:
    for _ in range(NODES):
        job.add()
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
    for _ in range(NODES):
        job.add()
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
    for _ in range(NODES):
        job.add()
    job.wait(1, NODES)
    lead = job.of(1, lambda one: one.group_rank == 0)[0]
    heir = job.of(1, lambda one: one.group_rank == 1)[0]
    assert not job.sealed[1][heir.node].round.whole  # who leads next does not know all members
    heir._store.apply(Transaction(deletes=tuple(job.groups())))
    lead.say(LeftRound(1, FaultReport(1, records.PLANNED, "to see the next round"), stays=False))
    lead.say(Goodbye())
    assert lead.wait_for_goodbye(10)
    job.wait(2, NODES - 1)
    assert not job.excluded
