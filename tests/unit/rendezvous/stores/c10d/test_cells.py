"""What one node makes of a TCPStore's cells and counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.rendezvous.store_contract import ABSENT, Changed
from elastic_runtime.rendezvous.stores.c10d.cells import Ageing, Cell, View, oldest

STAMP = b"12345678"
WHOLE = st.integers(0, 2**60)
CELLS = st.builds(
    Cell,
    version=WHOLE,
    alive=st.booleans(),
    created=WHOLE,
    value=st.binary(),
    lease=st.one_of(
        st.just(b""), st.binary(min_size=16, max_size=16).filter(lambda b: b != bytes(16))
    ),
    ttl=st.floats(0, 1e6),
)


@given(CELLS)
def test_a_cell_comes_back_as_it_was(cell: Cell) -> None:
    assert Cell.decode(cell.encode(STAMP)) == cell


def test_what_was_never_written_is_absent() -> None:
    assert Cell.decode(b"").expected == ABSENT


@given(st.binary(min_size=1).filter(lambda raw: not raw.startswith(b"ER1\n")))
def test_what_is_none_of_ours_is_shown_as_it_is(raw: bytes) -> None:
    cell = Cell.decode(raw)
    assert cell.alive
    assert cell.value == raw
    assert cell.expected != ABSENT
    assert cell.written(b"ours", 1).version > cell.version


def test_versions_grow_through_removals() -> None:
    first = Cell().written(b"a", created=7)
    changed = first.written(b"b", created=8)
    removed = changed.removed()
    again = removed.written(b"c", created=9)
    assert (first.created, changed.created, again.created) == (7, 7, 9)
    assert first.version < changed.version < removed.version < again.version
    assert removed.expected == ABSENT


def cell(version: int, value: bytes = b"", created: int = 1, lease: bytes = b"") -> Cell:
    return Cell(version, True, created, value, lease, 5.0)


def test_news_is_told_once_and_never_goes_back() -> None:
    view = View("nodes/me")
    newer = cell(2, b"2")
    assert view.merge({"job": newer}) == Changed((newer.entry("job"),))
    assert view.merge({"job": newer}) is None
    assert view.merge({"job": cell(1, b"1")}) is None
    assert view.merge({"job": newer.removed()}) == Changed((), ("job",))
    assert view.merge({"job": newer}) is None


@pytest.mark.parametrize(
    ("key", "wide", "followed"),
    [
        ("job", False, True),
        ("events/1", True, False),
        ("nodes/me", False, True),
        ("nodes/leader", False, True),
        ("nodes/other", False, False),
        ("nodes/other", True, True),
    ],
)
def test_what_is_followed(key: str, wide: bool, followed: bool) -> None:
    view = View("nodes/me")
    view.leader, view.wide = "nodes/leader", wide
    assert view.follows(key) is followed
    assert (view.merge({key: cell(1)}) is not None) is followed


def test_a_snapshot_keeps_what_a_reader_heard_after_it_was_read() -> None:
    view = View("nodes/me")
    newer = cell(3, b"newer")
    view.merge({"round": newer})
    snapshot = view.show({"round": cell(2, b"older"), "job": cell(1, b"j", created=0)})
    assert [(entry.key, entry.value) for entry in snapshot.entries] == [
        ("job", b"j"),
        ("round", b"newer"),
    ]


def test_a_narrow_snapshot_drops_other_nodes() -> None:
    view = View("nodes/me")
    view.wide = True
    view.merge({"nodes/other": cell(1), "nodes/me": cell(1)})
    view.wide = False
    assert [entry.key for entry in view.show({}).entries] == ["nodes/me"]


def test_the_oldest_is_the_first_created_that_lives() -> None:
    cells = {"a": cell(1, created=1).removed(), "b": cell(1, created=3), "c": cell(1, created=2)}
    assert oldest(cells.items(), frozenset()) == "c"
    assert oldest(cells.items(), frozenset({"c"})) == "b"
    assert oldest({}.items(), frozenset()) == ""


TTL = {b"x": 6.0, b"y": 6.0}


def test_a_counter_at_rest_for_its_ttl_has_ended() -> None:
    ageing = Ageing()
    for second in range(7):
        assert ageing.observe({b"x": 1, b"y": second}, TTL, float(second)) == []
    assert ageing.observe({b"x": 1, b"y": 7}, TTL, 6.5) == [b"x"]


def test_an_observer_that_was_stopped_begins_anew() -> None:
    ageing = Ageing()
    ageing.observe({b"x": 1}, TTL, 100.0)
    assert ageing.observe({b"x": 1}, TTL, 200.0) == []
    for second in range(1, 7):
        assert ageing.observe({b"x": 1}, TTL, 200.0 + second) == []
    assert ageing.observe({b"x": 1}, TTL, 206.5) == [b"x"]


def test_a_lease_that_comes_into_view_gets_its_full_time() -> None:
    ageing = Ageing()
    for second in range(10):
        ageing.observe({b"y": second}, TTL, float(second))
    for second in range(10, 16):
        assert ageing.observe({b"x": 4, b"y": second}, TTL, float(second)) == []
