"""Slurm's lists of hosts."""

from __future__ import annotations

import pytest

from elastic_runtime.cli.slurm.host_list import expand_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[0-1]", "n0 n1"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[1,3-4]", "n1 n3 n4"),
        ("gpu[1-2]-ib0", "gpu1-ib0 gpu2-ib0"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("login,n[0,2],a-b.example", "login n0 n2 a-b.example"),
        ("n[99-101]", "n99 n100 n101"),
    ],
)
def test_a_list_is_expanded(text: str, names: str) -> None:
    assert expand_hosts(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["", "n[", "n[1-]", "n[a-b]", "n[3-1]", "n[]", "a,,b", "n]1["])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no list of hosts"):
        expand_hosts(text)
