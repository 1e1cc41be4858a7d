"""Where a node is in its network: opaque levels from far to near, such as ``zone-a/block-3/rack7``.

Nodes that share their first levels are near each other, and fail together. Nothing is known of a
level but whether two nodes have the same one. No levels at all mean that nothing is known. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from elastic_runtime.limits import LONGEST_TOPOLOGY_LEVEL, MAX_TOPOLOGY_LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

SEPARATOR = "/"
# How it is written that nothing is known, where nothing written means that it is not known yet.
NONE_KNOWN = "-"


def parse_topology(text: str) -> tuple[str, ...]:
    """Reads ``zone/block/rack``; ``-`` and an empty text have no levels.

    Args:
        text: slashes and space around it do not count.

    Raises:
        ValueError: it is none, and why.
    """
    plain = text.strip()
    plain = plain.removeprefix(SEPARATOR).removesuffix(SEPARATOR)
    levels = () if plain in ("", NONE_KNOWN) else tuple(plain.split(SEPARATOR))
    if why := topology_problem(levels):
        raise ValueError(why)
    return levels


def topology_problem(levels: Sequence[str]) -> str:
    """What is wrong with a topology, for people; "" if nothing is."""
    if len(levels) > MAX_TOPOLOGY_LEVELS:
        return f"it has {len(levels)} levels, and may have {MAX_TOPOLOGY_LEVELS}"
    for number, level in enumerate(levels, 1):
        if not level:
            return f"level {number} is empty"
        if len(level) > LONGEST_TOPOLOGY_LEVEL:
            return f"level {number} has {len(level)} characters, of {LONGEST_TOPOLOGY_LEVEL}"
        if not level.isprintable() or SEPARATOR in level:
            return f"level {number} has a character that no level can have: {level!a}"
    return ""


@lru_cache(maxsize=4096)
def known_topology(text: str) -> tuple[str, ...]:
    """The topology that another node has written into the store; one that is odd counts as none."""
    try:
        return parse_topology(text)
    except ValueError:
        return ()


def topology_text(levels: Sequence[str]) -> str:
    """As people write it; "" if nothing is known."""
    return SEPARATOR.join(levels)


def common_levels(one: Sequence[str], other: Sequence[str]) -> int:
    """How many levels two nodes share, from the farthest one on."""
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return number
    return min(len(one), len(other))
