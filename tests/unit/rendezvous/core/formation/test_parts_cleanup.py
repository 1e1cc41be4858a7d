"""The parts of rounds in the store are as they should be, or are put right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import ROUND
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, ListParts
from elastic_runtime.rendezvous.core.membership_events import PartsSeen, Tick
from elastic_runtime.rendezvous.core.notices import BadRecord
from elastic_runtime.rendezvous.core.round_parts import keys, split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.round_completer import parts_seen
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, StoreEntry
from tests.unit.rendezvous.node_under_test import POLICY, NodeUnderTest, job, node, sealed

LAYOUT = Layout(most=2, part=2, first=2, keepers=2)
LAST, PARTS = split_round(sealed(3, *"abcdef"), LAYOUT)
OURS = frozenset(keys(LAST))
STRAY = "group/0123456789abcdef/00000"
# A round has been there for so long when its parts are looked at, and then again after so long.
FIRST, AGAIN = 10.1, 60.1


def _leader(most: int = 6) -> NodeUnderTest:
    """The leader of a round that is whole, with all its members."""
    policy = replace(POLICY, layout=LAYOUT, max_nodes=most)
    full = replace(sealed(3, *"abcdef"), group=LAST.group, parts=LAST.parts, nodes=6, workers=6)
    small = sealed(3, "a", "b")
    tested = NodeUnderTest("a", policy).sees(
        job(high=most), *map(node, "abcdef"), full if most > 2 else small
    )
    return tested.settle()


def _asked(tested: NodeUnderTest) -> bool:
    return any(isinstance(action, ListParts) for action in tested.actions)


def _sees(
    tested: NodeUnderTest, intact: frozenset[str], wrong: frozenset[str] = frozenset()
) -> NodeUnderTest:
    assert _asked(tested.feed(Tick(), FIRST))
    return tested.feed(PartsSeen(tested.state.shown.round.version, intact, wrong))


def test_it_is_looked_from_time_to_time_while_the_round_runs() -> None:
    tested = _leader().feed(Tick(), FIRST)
    assert _asked(tested)
    assert not _asked(tested.feed(PartsSeen(tested.state.shown.round.version, OURS)))
    assert tested.transaction(ROUND) is None
    assert not _asked(tested.feed(Tick(), AGAIN / 2))
    assert _asked(tested.feed(Tick(), AGAIN / 2))


def test_a_store_that_does_not_answer_is_asked_again_later() -> None:
    tested = _leader().feed(Tick(), FIRST)
    assert not _asked(tested.feed(Tick(), 1.0))
    assert _asked(tested.feed(Tick(), AGAIN))


def test_parts_of_no_round_go_with_a_write_that_nobody_who_seals_can_miss() -> None:
    tested = _sees(_leader(), OURS | {STRAY})
    written = tested.transaction(ROUND)
    assert written is not None
    assert written.deletes == (STRAY,)
    assert Expect(ROUND, tested.state.shown.round.version) in written.expects
    assert all(expect.version != ABSENT for expect in written.expects)
    (head,) = written.puts
    assert RoundRecord.decode(ROUND, head.value) == LAST  # as it was


def test_what_is_missing_is_given_back() -> None:
    tested = _sees(_leader(), OURS - {min(OURS)})
    (write,) = [action for action in tested.actions if isinstance(action, ApplyTransaction)]
    assert write.first == PARTS


def test_a_wrong_part_is_written_again_and_is_said() -> None:
    tested = _sees(_leader(), OURS - {min(OURS)}, frozenset({min(OURS)}))
    assert [bad.key for bad in tested.told(BadRecord)] == [min(OURS)]
    (write,) = [action for action in tested.actions if isinstance(action, ApplyTransaction)]
    assert write.first == PARTS


def test_what_was_seen_beside_another_round_says_nothing() -> None:
    tested = _leader().feed(Tick(), FIRST)
    tested.feed(PartsSeen(tested.state.shown.round.version - 1, frozenset({STRAY})))
    assert tested.transaction(ROUND) is None


def test_a_job_whose_rounds_are_in_one_piece_looks_for_nothing() -> None:
    assert not _asked(_leader(most=2).feed(Tick(), FIRST))


@pytest.mark.parametrize("broken", [b"rubbish", b"{}", b""])
def test_a_part_that_was_overwritten_is_seen(broken: bytes) -> None:
    entries = [StoreEntry(put.key, put.value, 1, 1) for one in PARTS for put in one.puts]
    entries[0] = replace(entries[0], value=broken)
    seen = parts_seen(lambda prefix: entries, 7)
    assert seen == PartsSeen(7, OURS - {entries[0].key}, frozenset({entries[0].key}))
