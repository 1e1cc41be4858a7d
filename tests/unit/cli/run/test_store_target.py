"""Where the nodes of a job meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.run.store_target import (
    EmbeddedTarget,
    TorchrunTarget,
)
from elastic_runtime.config import Endpoint

if TYPE_CHECKING:
    from tests.unit.cli.conftest import JobOf


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
