"""Our flags: each has one meaning, in every place where it can be given."""

from __future__ import annotations

from collections import Counter

import pytest

from elastic_runtime.cli.flags.flag_options import OURS, Option


def test_no_two_flags_share_a_name() -> None:
    names = Counter(name for option in OURS for name in (*option.names, *option.flags))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("option", OURS, ids=lambda option: option.dest)
def test_each_flag_can_be_written_in_two_ways_and_says_what_it_is_for(option: Option) -> None:
    assert option.group and option.help
    for flag in option.flags:
        assert flag.startswith("--")
        assert "--" + flag.removeprefix("--").replace("-", "_") in option.flags


def test_times_are_shown_as_people_type_them() -> None:
    (join,) = [option for option in OURS if option.dest == "join_timeout"]
    assert "10m" in join.help
