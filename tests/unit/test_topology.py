"""Where a node is, as people and other nodes say it."""

from __future__ import annotations

import pytest

from elastic_runtime.topology import common_levels, known_topology, parse_topology, topology_text


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
