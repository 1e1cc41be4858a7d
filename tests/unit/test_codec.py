"""The codec, errors, topologies, durations, pauses and clocks: what they say of odd values."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from elastic_runtime import codec, errors
from elastic_runtime.backoff import Backoff
from elastic_runtime.clock import ManualClock, MonotonicClock
from elastic_runtime.durations import duration_text, parse_duration
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    DamagedCheckpoint,
    RecordError,
    SaveOverdue,
    did_you_mean,
)
from elastic_runtime.topology import common_levels, known_topology, parse_topology, topology_text


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Whole:
    number: int
    parts: tuple[Part, ...] = ()
    _index: dict[str, int] = field(init=False, compare=False, default_factory=dict)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"number": "1"}, "number: expected int, got str"),
        ({"number": True}, "number: expected int, got bool"),
        ({"number": 1.5}, "number: expected int, got float"),
        ({"number": None}, "number: expected int, got null"),
        ({"number": 1, "parts": {}}, "parts: expected array, got object"),
        ({"number": 1, "parts": [{"name": 5}]}, "parts[0].name: expected str, got int"),
        ({"number": 1, "parts": [{}]}, "parts[0]: object missing required field name"),
        ({"number": 1, "parts": [{"name": "a", "size": 10**400}]}, "parts[0].size: number out"),
        ({}, "object missing required field number"),
        ([], "expected object, got array"),
    ],
)
def test_an_error_names_the_field_and_the_reason(body: object, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        codec.build(Whole, body)
    assert str(caught.value).startswith(why)


def test_an_unknown_field_is_ignored_or_refused_by_name() -> None:
    assert codec.build(Whole, {"number": 1, "more": 2}) == Whole(1)
    with pytest.raises(ValueError, match="unknown field more"):
        codec.build(Whole, {"number": 1, "more": 2}, exact=True)


def test_what_a_dataclass_keeps_for_itself_is_not_written() -> None:
    data = codec.encode(Whole(1, (Part("a"),)), v=1)
    assert data == b'{"v":1,"number":1,"parts":[{"name":"a","size":0.0}]}'


def test_a_number_of_another_library_is_written_as_a_number() -> None:
    class Float64(float):
        """As numpy's."""

    assert codec.encode(Part("a", Float64(1.5))) == b'{"name":"a","size":1.5}'


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", "{}".encode("utf-16"), b"[" * 100_000])
def test_what_is_no_json_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(ValueError):
        codec.parse(data)


# ---------------------------------------------------------------- errors


def test_an_error_about_checkpoints_is_the_users_or_the_worlds() -> None:
    with pytest.raises(TypeError, match="whose fault"):
        CheckpointError("no")
    assert DamagedCheckpoint("x").exit_code == errors.EXIT_USAGE
    assert CheckpointFailed("x").exit_code == errors.EXIT_FAILED
    refused = SaveOverdue("x", refused=True)
    assert refused.refused and str(refused) == "x"
    assert not CheckpointFailed("x").refused


def test_a_bad_record_is_named() -> None:
    error = RecordError("nodes/a", "no JSON")
    assert str(error) == "the record 'nodes/a' in the store cannot be used: no JSON"
    assert (error.key, error.why) == ("nodes/a", "no JSON")


def test_the_nearest_name_is_suggested_if_it_is_near() -> None:
    assert did_you_mean("--mni", ["--min", "--max"]) == "; did you mean '--min'?"
    assert did_you_mean("--verbose", ["--min", "--max"]) == ""


# ---------------------------------------------------------------- topology


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("zone/block/rack", ("zone", "block", "rack")),
        ("/zone/rack 7/\n", ("zone", "rack 7")),
        ("é", ("é",)),
        ("-", ()),
        (" \n", ()),
        ("/", ()),
        ("/".join("12345678"), tuple("12345678")),
        ("x" * 64, ("x" * 64,)),
    ],
)
def test_a_topology_is_read(text: str, levels: tuple[str, ...]) -> None:
    assert parse_topology(text) == known_topology(text) == levels
    assert parse_topology(topology_text(levels)) == levels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a//b", "level 2 is empty"),
        ("///", "level 1 is empty"),
        ("/".join("123456789"), "it has 9 levels, and may have 8"),
        ("a/" + "x" * 65, "level 2 has 65 characters, of 64"),
        ("a\nb", r"level 1 has a character that no level can have: 'a\\nb'"),
        ("a/\0", r"level 2 has a character that no level can have: '\\x00'"),
        ("\udce9", "level 1 has a character that no level can have"),
    ],
)
def test_what_is_none_is_refused_and_counts_as_none_if_another_node_says_it(
    text: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        parse_topology(text)
    assert known_topology(text) == ()


def test_levels_that_two_nodes_share_are_counted_from_the_farthest() -> None:
    assert common_levels("abc", "abd") == 2
    assert common_levels("abc", "xbc") == 0
    assert common_levels("ab", "abc") == common_levels("abc", "ab") == 2
    assert common_levels("", "a") == 0


# ---------------------------------------------------------------- durations, pauses and clocks


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("30 sec", 30.0),
        (" 1.5H ", 5400.0),
        ("10m", 600.0),
        ("10min", 600.0),
        (".5h", 1800.0),
        ("7d", 604800.0),
        ("0s", 0.0),
    ],
)
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_number_alone_has_the_unit_of_who_asks() -> None:
    assert parse_duration("2", unit="s") == 2.0
    assert parse_duration("2", unit="m") == 120.0
    with pytest.raises(ValueError, match="2"):
        parse_duration("2")


@pytest.mark.parametrize("text", ["", "s", "-1s", "1w", "1 h 30", "1e3s", "nan", "9" * 400 + "s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (30, "30 s"), (90, "1.5 min"), (7200, "2 h"), (604800, "7 d"), (0, "0 s")],
)
def test_the_text_of_a_duration_is_exact(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


PAUSES = Backoff(first=0.5, longest=4.0)


def test_pauses_double_from_the_first_to_the_longest_however_often_it_fails() -> None:
    """Nothing has failed is as the first failure."""
    tries = 0, 1, 2, 3, 4, 5, 10**6
    assert [PAUSES.pause(failures) for failures in tries] == [0.5, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_pauses_may_grow_by_another_factor() -> None:
    assert Backoff(first=1.0, longest=50.0, factor=3.0).pauses(5) == (1.0, 3.0, 9.0, 27.0, 50.0)


def test_a_random_pause_is_a_half_of_it_at_least() -> None:
    assert all(1.0 <= PAUSES.random_pause(3) <= 2.0 for _ in range(100))


def test_no_clock_goes_back() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    with pytest.raises(ValueError, match=r"cannot go back by 2 s"):
        clock.advance(-2)
    assert clock.now() == 6.5
    machines = MonotonicClock()
    assert machines.now() <= machines.now()
