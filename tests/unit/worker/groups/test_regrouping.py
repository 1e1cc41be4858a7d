"""Which way of regrouping a worker takes."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ENV_CHANNEL
from elastic_runtime.system import torch_private
from elastic_runtime.system.torch_version import (
    AUTO,
    ENV_REGROUP,
    REBUILD,
    RECONFIGURE,
    choose_regroup,
    differ,
    has_gpus,
)
from elastic_runtime.worker.context import WorkerContext
from elastic_runtime.worker.groups.regrouping import choose_regrouping
from elastic_runtime.worker.groups.store_clients import Stores


@pytest.mark.parametrize(
    ("wanted", "torch", "chosen"),
    [
        (AUTO, "2.15.0+cu132", RECONFIGURE),
        (AUTO, "2.16.0.dev20270101", RECONFIGURE),
        (AUTO, "2.14.1", REBUILD),
        (AUTO, "", REBUILD),
        (REBUILD, "2.15.0", REBUILD),
        (REBUILD, "2.13.0", REBUILD),
        (RECONFIGURE, "2.15.0", RECONFIGURE),
    ],
)
def test_the_best_that_this_torch_can_do_is_taken(wanted: str, torch: str, chosen: str) -> None:
    assert choose_regroup(wanted, torch, gpus=False) == chosen


def test_groups_of_gpus_are_reconfigured_where_it_is_asked_for() -> None:
    assert choose_regroup(AUTO, "2.15.0", gpus=True) == REBUILD
    assert choose_regroup(RECONFIGURE, "2.15.0", gpus=True) == RECONFIGURE


@pytest.mark.parametrize(("torch", "named"), [("2.14.1", "2.14.1"), ("", "unknown version")])
def test_what_this_torch_cannot_do_is_refused(torch: str, named: str) -> None:
    with pytest.raises(UsageError, match=f"needs torch 2.15 or newer, and here is .*{named}"):
        choose_regroup(RECONFIGURE, torch, gpus=False)


def test_groups_that_torch_wraps_cannot_be_reconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    assert choose_regroup(AUTO, "2.15.0", gpus=False) == REBUILD
    with pytest.raises(UsageError, match="TORCH_DISTRIBUTED_DEBUG=DETAIL"):
        choose_regroup(RECONFIGURE, "2.15.0", gpus=False)


def test_a_worker_does_what_its_agent_says() -> None:
    best = RECONFIGURE if torch_private.can_reconfigure() and not has_gpus() else REBUILD
    for said, done in (("", best), (AUTO, best), (REBUILD, REBUILD)):
        here = WorkerContext({ENV_CHANNEL: "/x", ENV_REGROUP: said})
        assert choose_regrouping(Stores(), here.regroup).name == done
    assert WorkerContext({ENV_REGROUP: "nonsense"}).regroup == AUTO, "it has no agent"


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("2.13.0+cpu", "2.13.1+cu130", False),
        ("2.13.0", "2.15.0", True),
        ("2.13.0", "", False),
        ("", "", False),
    ],
)
def test_versions_that_cannot_form_groups_together(one: str, other: str, apart: bool) -> None:
    assert differ(one, other) is apart
