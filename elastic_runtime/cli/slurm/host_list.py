"""Slurm's lists of hosts, such as ``n[08-10,12],gpu1-ib0``: pure.

The form is that of ``scontrol show hostlist``: names separated by commas; in brackets numbers and
ranges of them, as wide as they are written; several brackets in a name stand for all combinations.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A comma outside of brackets.
_BETWEEN = re.compile(r",(?![^\[\]]*\])")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
# More than any cluster has: a list that is none must not take all memory.
_MOST = 1 << 17


def expand_hosts(text: str) -> tuple[str, ...]:
    """All names of a list, in its order.

    Raises:
        ValueError: it is no such list.
    """
    found = (name for part in _BETWEEN.split(text) for name in _names(part, text))
    names = tuple(itertools.islice(found, _MOST + 1))
    if len(names) > _MOST:
        raise ValueError(f"{text!r} lists more than {_MOST} hosts")
    return names


def _names(part: str, whole: str) -> Iterator[str]:
    pieces = list(_PIECE.finditer(part))
    if not pieces or "".join(piece[0] for piece in pieces) != part:
        raise ValueError(f"{whole!r} is no list of hosts")
    choices = [
        [*_numbers(piece[1], whole)] if piece[1] is not None else [piece[2]] for piece in pieces
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(text: str, whole: str) -> Iterator[str]:
    for one in text.split(","):
        found = _RANGE.fullmatch(one)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"{whole!r} is no list of hosts: [{one}] is no range of numbers")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first > _MOST:
            raise ValueError(f"{whole!r} lists more than {_MOST} hosts")
        for number in range(first, last + 1):
            yield f"{number:0{len(found[1])}}"
