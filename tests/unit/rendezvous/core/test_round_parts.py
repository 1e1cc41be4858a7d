"""The members of a large round lie in parts; each node reads what it needs, and no more."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from elastic_runtime.errors import RecordError
from elastic_runtime.limits import MAX_FRUITLESS_ROUNDS
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import ROUND
from elastic_runtime.protocol.round_records import Budget, GroupRecord, RoundRecord
from elastic_runtime.rendezvous.core import round_parts
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from tests.unit.rendezvous.large_rounds import Shelf, sealed

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
            cls.decode(ROUND, data)


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
            RoundRecord.decode(ROUND, json.dumps({**body, **wrong}).encode())
