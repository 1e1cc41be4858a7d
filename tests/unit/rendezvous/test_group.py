"""The members of a large round lie in parts; each node reads what it needs, and no more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import RecordError, StoreUnavailable
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import ROUND, Member, RoundRecord
from elastic_runtime.rendezvous import group
from elastic_runtime.rendezvous.group import Completer, apart
from elastic_runtime.rendezvous.state import Layout
from elastic_runtime.rendezvous.store import Changed, Entry, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

# What etcd takes in one request by default (``--max-request-bytes``).
REQUEST = 1_500_000


def sealed(size: int, number: int = 7) -> RoundRecord:
    members = tuple(
        Member(f"{rank:032x}", f"node-{rank}", "10.0.0.1", 1 + rank % 8, 1000, 2000)
        for rank in range(size)
    )
    return RoundRecord(number, "life", members, 2000, "first round", sealed_by=members[0].node)


class Shelf:
    """Entries that can be read, and which prefixes were."""

    def __init__(self, last: RoundRecord, layout: Layout) -> None:
        head, writes = apart(last, layout)
        puts = [put for write in writes for put in write.puts]
        self.entries = [Entry(put.key, put.value, 1, 1) for put in puts]
        self.round = Entry(ROUND, head.encode(), 1, 1)
        self.reads: list[str] = []
        self.serves = True

    def read(self, prefix: str) -> Sequence[Entry]:
        if not self.serves:
            raise StoreUnavailable("no answer")
        self.reads.append(prefix)
        return [entry for entry in self.entries if entry.key.startswith(prefix)]

    def shown(self, node: str, wide: bool = False) -> RoundRecord:
        completer = Completer(self.read, Layout().keepers)
        event = completer.take(Changed((self.round,)), node, wide, 0.0)
        assert isinstance(event, Changed)
        assert not completer.owed
        return RoundRecord.decode(ROUND, event.puts[0].value)


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
    head, writes = apart(sealed(10_000), Layout())
    assert len(head.encode()) < 3000
    assert max(sum(len(put.value) for put in write.puts) for write in writes) < REQUEST / 2
    assert max(len(write.puts) for write in writes) <= 128
    assert len({put.key for write in writes for put in write.puts}) == head.parts


def test_a_small_round_is_one_record_as_ever() -> None:
    head, writes = apart(sealed(128), Layout())
    assert (head, writes) == (sealed(128), ())
    assert json.loads(head.encode())["v"] == 1


def test_who_does_not_know_of_parts_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    head, writes = apart(sealed(129), Layout())
    monkeypatch.setattr(records, "FORMAT", 1)
    for data, cls in [(head.encode(), RoundRecord), (writes[0].puts[0].value, records.GroupRecord)]:
        with pytest.raises(RecordError, match="its format is 2, this program reads up to 1"):
            cls.decode(ROUND, data)


def test_the_same_members_lie_in_the_same_place_and_others_elsewhere() -> None:
    one, again, other = (apart(sealed(size), Layout())[0] for size in (200, 200, 201))
    assert one.group == again.group != other.group
    assert not set(group.keys(one)) & set(group.keys(other))


def test_what_was_read_once_is_not_read_again() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    completer = Completer(shelf.read, 8)
    completer.take(Snapshot((shelf.round,), True), "x", True, 0.0)
    reads = len(shelf.reads)
    completer.take(Snapshot((shelf.round,), False), last.members[1].node, False, 1.0)
    assert len(shelf.reads) == reads


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.serves = False
    completer = Completer(shelf.read, 8)
    event = completer.take(Changed((shelf.round,)), last.members[1].node, False, 0.0)
    assert (event, completer.owed) == (Changed(), True)
    assert completer.again(last.members[1].node, False, 100.0) is None  # however long it takes
    shelf.serves = True
    late = completer.again(last.members[1].node, False, 101.0)
    assert late is not None
    assert RoundRecord.decode(ROUND, late.puts[0].value).rank_of(last.members[1].node) == 1
    assert not completer.owed


def test_a_round_whose_members_are_gone_is_unreadable_after_a_while() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.entries.pop()
    completer = Completer(shelf.read, 8)
    assert completer.take(Changed((shelf.round,)), "nobody", False, 0.0) == Changed()
    assert completer.again("nobody", False, group.PATIENCE) is None
    late = completer.again("nobody", False, group.PATIENCE + 1)
    assert late is not None
    with pytest.raises(RecordError, match="its members are not in the store"):
        RoundRecord.decode(ROUND, late.puts[0].value)
    # The next round is another matter.
    following = Shelf(sealed(210, number=8), Layout())
    shelf.entries = following.entries
    event = completer.take(Changed((following.round,)), "nobody", False, 10.0)
    assert isinstance(event, Changed)
    assert RoundRecord.decode(ROUND, event.puts[0].value).whole


def test_a_part_that_cannot_be_read_is_as_good_as_none() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.entries = [Entry(entry.key, b"rubbish", 1, 1) for entry in shelf.entries]
    completer = Completer(shelf.read, 8)
    event = completer.take(Changed((shelf.round,)), last.members[50].node, False, 0.0)
    assert (event, completer.owed) == (Changed(), True)  # and not: it is no member


def test_ranks_that_cannot_be_are_refused() -> None:
    head, _ = apart(sealed(200), Layout())
    body = json.loads(head.encode())
    for wrong in ({"ranks": [0]}, {"nodes": 3}, {"parts": 0}):
        with pytest.raises(RecordError):
            RoundRecord.decode(ROUND, json.dumps({**body, **wrong}).encode())
