"""Frozen dataclasses as JSON and back: the one codec of records, messages and requests.

msgspec checks what is read against the types of the fields, and its errors become ours here. What
is written is left to ``json``: msgspec writes characters beyond ASCII as they are and refuses file
names that are not Unicode, and the bytes in the store are the same in all versions.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import msgspec

_T = TypeVar("_T")


def encode(value: Any, **head: Any) -> bytes:
    """Compact JSON of a dataclass, in ASCII.

    Args:
        value: its fields are plain values, or tuples of them, or dataclasses like it.
        head: what is written before the fields.
    """
    body = {**head, **_plain(value)}
    return json.dumps(body, separators=(",", ":"), default=_plain).encode()


def parse(data: str | bytes) -> Any:
    """The plain values that JSON says.

    Raises:
        ValueError: it is not JSON in UTF-8, or nested too deeply.
    """
    try:
        # Bytes would be searched for signs of UTF-16, which is a fifth of the time of a short one.
        return json.loads(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def build(cls: type[_T], body: Any, *, exact: bool = False) -> _T:
    """A dataclass made of plain values.

    Args:
        cls: the dataclass.
        body: what ``parse`` gave.
        exact: a field that ``cls`` does not have is an error, and not ignored.

    Raises:
        ValueError: a value is missing or of another type; names the field, in words for people.
    """
    if exact and isinstance(body, dict) and (unknown := body.keys() - _names(cls)):  # type: ignore[arg-type]
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    import msgspec  # compiled: `kubectl elastic` does without, and reads nothing of this kind

    try:
        return msgspec.convert(body, cls)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(error)) from None


def _in_words(error: msgspec.ValidationError) -> str:
    """``members[0].node: expected str, got int`` for the library's wording of it."""
    what, _, where = str(error).replace("`", "").partition(" - at $")
    what = what[:1].lower() + what[1:]
    return f"{where.removeprefix('.')}: {what}" if where else what


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _names(type(value))}  # type: ignore[arg-type]


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls) if one.init)
