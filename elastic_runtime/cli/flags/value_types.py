"""What the values of options can be: how each is read from text, and what it is called in errors.

A flag and an environment variable always arrive as text; a TOML file also has numbers, booleans
and lists. Both end in the same reader, so that a value means the same wherever it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.config import MemoryLimit
from elastic_runtime.durations import parse_duration
from elastic_runtime.limits import LONGEST_TOPOLOGY_LEVEL, MAX_TOPOLOGY_LEVELS
from elastic_runtime.topology import parse_topology

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMORY = re.compile(
    r"(?P<number>\d{1,18}(\.\d*)?|\.\d+)\s*(?P<unit>%|[kmgt](ib?|b)?|b)?", re.IGNORECASE
)
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{rest}": base**power
    for power, letter in enumerate("kmgt", 1)
    for rest, base in (("", 1024), ("i", 1024), ("ib", 1024), ("b", 1000))
}
_STREAMS = range(4)  # torch's Std: 0 none, 1 stdout, 2 stderr, 3 both
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class ValueType:
    """A type of value.

    Attributes:
        what: completes "… is not ".
        read: makes the value from text; raises ``ValueError`` for anything else.
        toml: the TOML types that may stand for it beside a list.
        many: several may be given, as a list in TOML and separated by commas elsewhere.
    """

    what: str
    read: Callable[[str], Any]
    toml: tuple[type, ...] = (str,)
    many: bool = False

    def from_toml(self, value: object) -> Any:
        """Makes the value from one of a TOML file.

        Raises:
            ValueError: it has the wrong type, or is no such value.
        """
        if isinstance(value, str) and "\0" in value:
            raise ValueError("text with a zero byte, which no command line and no path can have")
        if self.many and isinstance(value, list):
            return tuple(item for part in value for item in self.from_toml(part))
        # bool is an int to isinstance; type() keeps ``max = true`` from meaning 1.
        if type(value) not in self.toml:
            raise ValueError(f"a {type(value).__name__} cannot be {self.what}")
        # A float as it is written in full: a duration knows no exponent.
        return self.read(f"{value:f}" if type(value) is float else str(value))


def seconds(text: str) -> float:
    """Reads a duration: ``2``, ``1.5``, ``30s``, ``500ms``, ``10m``, ``1h`` or ``7d``, in seconds.

    Raises:
        ValueError: it is none.
    """
    return parse_duration(text, unit="s")


def memory(text: str) -> MemoryLimit:
    """Reads an amount of memory: ``8GiB``, ``500MB``, ``25%``, ``0``, or a number of bytes.

    Raises:
        ValueError: it is none, or more than all.
    """
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise ValueError(text)
    number, unit = float(match["number"]), (match["unit"] or "").lower()
    if not unit and 0 < number < _BYTES["mib"]:
        raise ValueError(text)  # percent or gigabytes were meant: so few bytes make no sense
    if unit != "%":
        return MemoryLimit(bytes=int(number * _BYTES[unit]))
    if number > 100:
        raise ValueError(text)
    return MemoryLimit(share=number / 100)


def _positive_seconds(text: str) -> float:
    value = seconds(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError(text)


def _whole(text: str) -> int:
    # int() also takes "1_000"; a number of nodes is not written so.
    if not re.fullmatch(r"[+-]?\d+", text.strip()):
        raise ValueError(text)
    return int(text)


def _count(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise ValueError
    return number


def _port(text: str) -> int:
    port = _whole(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def _nodes(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    first = _whole(low)
    return first, _whole(high) if colon else first


def _streams(text: str) -> dict[int, int]:
    """torch's ``--redirects``: ``3``, or ``0:1,1:2`` by local rank; the key -1 means all."""
    if ":" not in text:
        return {} if (stream := _stream(text)) == 0 else {-1: stream}
    pairs = (part.split(":", 1) for part in text.split(","))
    return {_whole(rank): _stream(stream) for rank, stream in pairs}


def _stream(text: str) -> int:
    stream = _whole(text)
    if stream not in _STREAMS:
        raise ValueError(text)
    return stream


def _ranks(text: str) -> frozenset[int]:
    return frozenset(_whole(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _signals(text: str) -> tuple[str, ...]:
    import signal

    names = _words(text)
    handled = signal.Signals.__members__.keys() - {"SIGKILL", "SIGSTOP"}  # which no process hears
    if not names or not handled.issuperset(names):
        raise ValueError(text)
    return names


def _name(text: str) -> str:
    text.encode()  # what a terminal of another encoding sends is text to Python only
    return text


def _pairs(text: str) -> dict[str, str]:
    """torch's ``--rdzv-conf``: ``key=value,key=value``.

    Also in quotes: a list of arguments in YAML hands them over as a part of the text.
    """
    text = text.strip()
    if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1]:
        text = text[1:-1]
    pairs: dict[str, str] = {}
    for part in _words(text):
        key, _, value = part.partition("=")
        if not key.strip() or not value.strip():
            raise ValueError(text)
        pairs[key.strip()] = value.strip()
    return pairs


def _escaped_list(text: str) -> tuple[str, ...]:
    """torch's filters: separated by commas, where two commas stand for one."""
    return tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))


def choice(*values: str) -> ValueType:
    """One of some words."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return ValueType(f"one of {', '.join(values)}", read)


TEXT = ValueType("text", str)
NAME = ValueType("a name in UTF-8", _name)
WHOLE = ValueType("a whole number", _whole, (int,))
PORT = ValueType("a port (1 to 65535, or 0 for none)", _port, (int,))
COUNT = ValueType("a whole number, 0 or more", _count, (int,))
NUMBER = ValueType("a number", float, (int, float))
WORKERS = ValueType("a number of workers (auto, cpu, gpu, xpu or a whole number)", str, (str, int))
NODES = ValueType("a number of nodes (N or MIN:MAX)", _nodes, (str, int))
SECONDS = ValueType("a number of seconds (such as 2, 1.5, 30s or 10m)", seconds, (str, int, float))
POSITIVE_SECONDS = ValueType(
    "a number of seconds above 0 (such as 2, 1.5, 30s or 10m)",
    _positive_seconds,
    (str, int, float),
)
MEMORY = ValueType("an amount of memory (such as 8GiB, 25% or 0)", memory, (str, int))
SWITCH = ValueType("a switch (1 or 0, true or false)", _switch, (bool,))
STREAMS = ValueType(
    "a choice of streams (0, 1, 2, 3, or RANK:STREAMS pairs such as 0:1,1:3)", _streams, (str, int)
)
RANKS = ValueType("a list of local ranks (such as 0,1,2)", _ranks, (str, int))
WORDS = ValueType("a list of names separated by commas", _words, (str,), many=True)
FILTERS = ValueType("a list of filters separated by commas", _escaped_list, (str,), many=True)
SIGNALS = ValueType(
    "a list of names of signals that can be handled (such as SIGTERM,SIGUSR1)", _signals, (str,)
)
TOPOLOGY = ValueType(
    f"a topology (such as zone/block/rack: up to {MAX_TOPOLOGY_LEVELS} levels of up to "
    f"{LONGEST_TOPOLOGY_LEVEL} printable characters, none of them empty)",
    parse_topology,
)
PAIRS = ValueType("a list of key=value pairs separated by commas", _pairs, (str,))
