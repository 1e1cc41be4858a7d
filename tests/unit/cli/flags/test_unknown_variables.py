"""Variables that look like settings and are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.unknown_variables import unknown_variables

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.flag_parser import Parser


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEASE_TLL", "LEASE_TTL"),
        ("RUNID", "RUN_ID"),
        ("NODES", "NNODES"),
        ("RDZV_ENDPOIN", "RDZV_ENDPOINT"),
        ("ETCD_PASWORD", "ETCD_PASSWORD"),
    ],
)
def test_one_that_resembles_a_setting_is_told(parser: Parser, name: str, meant: str) -> None:
    [line] = unknown_variables(parser.options.values(), {f"ELASTIC_{name}": "geheim"})
    assert line.startswith(f"ELASTIC_{name} has no effect")
    assert line.endswith(f"did you mean 'ELASTIC_{meant}'?")
    assert "geheim" not in line


def test_whatever_has_a_meaning_or_is_somebody_elses_is_not(parser: Parser) -> None:
    names = [
        # Settings
        *("LEASE_TTL", "RUN_ID", "RDZV_ID", "ETCD_PASSWORD", "NNODES", "LOG_FILE"),
        # What this package sets for workers, pods and its own controller; a worker may run a job
        *("CHANNEL", "PROGRESS", "ROUND", "INCARNATION", "NODE_NAME", "WORKER", "SNAPSHOTS"),
        *("PEER_TIMEOUT", "CHECKPOINT", "ETCD_IMAGE", "NODE_LIFE", "RESUMING"),
        # The tests' own
        *("TEST_CLUSTER", "TEST_IMAGE", "TEST_MARK"),
        # Elasticsearch's relatives
        *("APM_SERVER_URL", "APM_SECRET_TOKEN", "CLOUD_ID", "VERSION"),
    ]
    environ = dict.fromkeys((f"ELASTIC_{name}" for name in names), "1")
    # A Service of Kubernetes that is called elastic-log
    environ |= {
        "ELASTIC_LOG_SERVICE_HOST": "10.0.0.1",
        "ELASTIC_LOG_SERVICE_PORT": "80",
        "ELASTIC_LOG_PORT": "tcp://10.0.0.1:80",
        "ELASTIC_LOG_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(parser.options.values(), environ) == []
