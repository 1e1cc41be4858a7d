"""Members of a large round are read before the node hears of it, and no more often than needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.limits import MISSING_MEMBERS_TIMEOUT
from elastic_runtime.protocol.records import ROUND
from elastic_runtime.rendezvous.core import round_parts
from elastic_runtime.rendezvous.core.membership_events import PartsGone, SampleKnown
from elastic_runtime.rendezvous.core.round_parts import split_round
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
from tests.unit.rendezvous.large_rounds import Shelf, sealed, told


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
    completer.wrote((*parts, Transaction(puts=(Put(ROUND, head.encode()),))))
    node = last.members[0].node
    assert told(completer.take([Changed((shelf.round,))], node, True, 0.0)).members == last.members


def test_a_round_that_is_deleted_meanwhile_does_not_come_back() -> None:
    last = sealed(200)
    shelf = Shelf(last, Layout())
    shelf.serves = False
    completer = RoundCompleter(shelf.read, 8)
    completer.take([Changed((shelf.round,))], "nobody", False, 0.0)
    shelf.serves = True
    gone = Changed((), (ROUND,))
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
