"""How machines are listed."""

from __future__ import annotations

import pytest

from elastic_runtime.cli.hosts.listed_hosts import Host, read_hosts
from elastic_runtime.errors import UsageError


def test_both_forms_are_read() -> None:
    text = (
        "# all\n\nn0\nuser@n1:4  # the large one\nn2 slots=2 max_slots=4\n"
        "[fe80::1%eth0]:8\n10.0.0.7\n"
    )
    assert read_hosts(text, "hosts.txt") == (
        Host("n0"),
        Host("user@n1", 4),
        Host("n2", 2),
        Host("fe80::1%eth0", 8),
        Host("10.0.0.7"),
    )
    assert read_hosts("\n# none\n", "hosts.txt") == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("n0 n1", "'n0 n1' is no host"),
        ("-oProxyCommand=reboot", "is no host"),
        ("n0;reboot", "is no host"),
        ("n0 slots=many", "is no host"),
        ("n0:0", "n0 has no workers"),
        ("n0:" + "9" * 5000, "is no host"),
        ("one", "one is there twice"),
    ],
)
def test_what_is_no_host_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_hosts(f"one\n{line}\n", "hosts.txt")
    assert str(caught.value).startswith("hosts.txt, line 2: ")
    assert said in str(caught.value)
