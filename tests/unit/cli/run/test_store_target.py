"""How many nodes there are, and where they meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.store_target import (
    EmbeddedTarget,
    TorchrunTarget,
    read_bounds,
)
from elastic_runtime.config import Endpoint
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import JobOf, SettingsOf


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ("", {}, (1, 1)),
        ("--max 4", {}, (1, 4)),
        ("--min 2", {}, (2, 2)),
        ("--min 2 --max 4", {}, (2, 4)),
        ("--nnodes 2", {}, (2, 2)),
        ("--nnodes 1:4", {}, (1, 4)),
        ("--local-nodes 3", {}, (1, 3)),
        ("--local-nodes 3 --max 2", {}, (1, 2)),
        ("--local-nodes 3 --min 2", {}, (2, 3)),
        ("--max 4", {"PET_NNODES": "2:3"}, (2, 4)),
        ("--nnodes 2", {"PET_MIN": "1", "ELASTIC_MAX": "5"}, (2, 2)),
        ("", {"ELASTIC_NNODES": "2:6", "PET_MIN": "3"}, (3, 6)),
    ],
)
def test_bounds(
    settings_of: SettingsOf, arguments: str, environ: dict[str, str], expected: tuple[int, int]
) -> None:
    bounds = read_bounds(settings_of(arguments, **environ))
    assert (bounds.low, bounds.high) == expected


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ("--min 1 --nnodes 2", {}, "--min=1 and --nnodes=2 say the same thing"),
        ("--max 3 --nnodes 2", {}, "--max=3 and --nnodes=2 say the same thing"),
        ("", {"PET_MAX": "3", "PET_NNODES": "2"}, "PET_MAX=3 and PET_NNODES=2 say the same"),
        ("--min 3 --max 2", {}, "--min=3 and --max=2: the minimum 3 is above the maximum 2"),
        ("--min 3", {"ELASTIC_MAX": "2"}, "--min=3 and ELASTIC_MAX=2: the minimum 3 is above"),
        ("--nnodes 3:2", {}, "--nnodes=3:2: the minimum 3 is above the maximum 2"),
        ("--min 0", {}, "--min=0: a job needs at least one node"),
        ("--max 0", {}, "--max=0: a job needs at least one node"),
        ("--nnodes 0:2", {}, "--nnodes=0:2: a job needs at least one node"),
        ("--min -3", {}, "--min=-3: a job needs at least one node"),
        ("--local-nodes 0", {}, "--local-nodes=0: at least one node"),
    ],
)
def test_bounds_that_no_world_fits(
    settings_of: SettingsOf, arguments: str, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_bounds(settings_of(arguments, **environ))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", EmbeddedTarget()),
        ("--nnodes 2", EmbeddedTarget()),
        ("--standalone --rdzv-backend static", EmbeddedTarget()),
        ("--rdzv-backend c10d", EmbeddedTarget()),
        ("--rdzv-backend c10d --rdzv-endpoint localhost:0", EmbeddedTarget()),
        ("--rdzv-backend c10d --rdzv-endpoint 10.0.0.5:0", EmbeddedTarget("10.0.0.5")),
        ("--listen", EmbeddedTarget("")),
        ("--listen 10.0.0.5:7", EmbeddedTarget("10.0.0.5", 7)),
        ("--master-port 29501", EmbeddedTarget()),
        ("--min 2 --max 2 --node-rank 1", EmbeddedTarget()),
        ("--nnodes 1:4 --master-addr h", EmbeddedTarget()),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1",
            Endpoint("c10d", ("h:1",)),
        ),
        ("--nnodes 2 --rdzv-backend c10d", Endpoint("c10d", ("localhost:29400",))),
        ("--rdzv-backend etcd --run-id a", Endpoint("etcd", ("localhost:2379",))),
        ("--rdzv-endpoint etcd://h/p --run-id a", Endpoint("etcd", ("h:2379",), prefix="p")),
        ("--rdzv-backend static", TorchrunTarget("static")),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint h", TorchrunTarget("etcd-v2")),
        ("--nnodes 2 --node-rank 1 --master-addr h", TorchrunTarget("static")),
        ("--nnodes 2 --node-rank 1 --rdzv-endpoint h:1", TorchrunTarget("static")),
    ],
)
def test_where_nodes_meet(
    job_of: JobOf, arguments: str, expected: EmbeddedTarget | TorchrunTarget | Endpoint
) -> None:
    job = job_of(arguments)
    if isinstance(job, TorchrunTarget):
        assert job == expected
    elif isinstance(expected, EmbeddedTarget):
        assert job.embedded == expected
    else:
        assert job.embedded is None
        assert job.config.endpoint == expected
