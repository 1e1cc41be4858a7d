"""What the codec says of values that are not what they should be."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from elastic_runtime import codec


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
