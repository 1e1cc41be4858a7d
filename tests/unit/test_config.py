"""Settings that exclude each other, and what fields were once called."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from elastic_runtime.cli.flags.flag_options import OURS
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Timeouts
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import FENCE_RESERVE

CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("h:1",)), "r")


@pytest.mark.parametrize("grace", [0.2, 1.2])
def test_a_fence_leaves_time_to_stop_the_workers(grace: float) -> None:
    times = Timeouts(broken_grace=grace, fence_timeout=1000.0)
    shortest = times.shortest_fence
    assert shortest * FENCE_RESERVE >= grace + 1.0
    assert shortest >= times.lease_ttl + grace + 1.0
    CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence_timeout=shortest))
    with pytest.raises(UsageError, match=f"fence_timeout=.*; give {shortest:g} s or more"):
        CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence_timeout=shortest - 0.1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_nodes": 0}, "min_nodes=0: a job needs at least one node"),
        ({"max_nodes": 0}, "max_nodes=0: a job needs at least one node"),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes=3, max_nodes=2: the minimum 3 is above"),
        ({"node_unit": 2}, "node_unit=2: it must lie between 1 and the maximum of 1 nodes"),
        ({"workers": 0}, "workers=0: a node runs at least one worker"),
        ({"min_workers": 2}, "min_workers=2: it must lie between 1 and the 1 workers of a node"),
        ({"max_restarts": -1}, "max_restarts=-1: it cannot be negative"),
        ({"node_life": -1}, "node_life=-1: it cannot be negative"),
        ({"node_topology": ("a", "")}, "node_topology=a/: level 2 is empty"),
        ({"node_topology": "a/b"}, "node_topology=a///b: level 2 has a character that no level"),
        ({"metrics_port": 70000}, "metrics_port=70000: it must lie between 0 and 65535"),
    ],
)
def test_what_no_job_can_be_run_with(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        CONFIG.with_(**changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grace", -1.0, "grace=-1.0: a time cannot be negative; give 0 or more seconds"),
        ("hang_timeout", float("nan"), "hang_timeout=nan: a time cannot be negative; give 0"),
        ("lease_ttl", 0.0, "lease_ttl=0.0: nothing can happen in no time; give more than 0"),
        ("join_timeout", -2.0, "join_timeout=-2.0: nothing can happen in no time; give more"),
    ],
)
def test_a_time_out_that_nothing_can_wait_for(name: str, value: float, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Timeouts(**{name: value})
    assert str(caught.value).startswith(message)


def test_a_flag_of_a_time_out_is_called_as_its_field() -> None:
    names = {field.name for field in fields(Timeouts)}
    assert {option.dest for option in OURS if "time-outs" in option.group} <= names


@pytest.mark.parametrize("former", ["connect", "join", "rejoin", "fence", "hang", "kill", "probe"])
def test_a_former_name_still_works_and_warns(former: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=f"Timeouts.{former} is now called {former}_timeout"
    ):
        times = Timeouts(**{former: 20.0})
    assert times == Timeouts(**{f"{former}_timeout": 20.0})
    with pytest.warns(DeprecationWarning):
        assert getattr(times, former) == 20.0
    with pytest.warns(DeprecationWarning):
        assert replace(times, **{former: 21.0}) == Timeouts(**{f"{former}_timeout": 21.0})
