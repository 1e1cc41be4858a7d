"""What the flags say of a node and its timeouts reaches the config, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.build_config import notes
from elastic_runtime.cli.run.job_from_command import (
    Job,
)
from elastic_runtime.cli.run.store_target import (
    TorchrunTarget,
)
from elastic_runtime.config import JobConfig
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.flag_parser import Parser
    from tests.unit.cli.conftest import JobOf, SettingsOf


ETCD = "--rdzv-endpoint etcd://h --run-id a "


def test_torchs_own_log_files_may_be_asked_for(job_of: JobOf, settings_of: SettingsOf) -> None:
    assert _config(job_of, "--logs-specs default").output == _config(job_of, "").output
    assert notes(settings_of("--logs-specs default")) == []
    assert job_of("--logs-specs mine --rdzv-backend static") == TorchrunTarget("static")


def test_bad_variables_of_torchruns(job_of: JobOf) -> None:
    with pytest.raises(UsageError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT='x' is not a number"):
        job_of(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="x")
    with pytest.raises(UsageError, match="TORCHELASTIC_HEALTH_CHECK_PORT='x' is not a port"):
        job_of(TORCHELASTIC_HEALTH_CHECK_PORT="x")


def test_each_worker_needs_a_device_for_a_virtual_local_rank(job_of: JobOf) -> None:
    for devices in ("0", "", "0,1"):
        with pytest.raises(UsageError, match="--virtual-local-rank: each of the 3 workers needs"):
            job_of("--nproc-per-node 3 --virtual-local-rank", CUDA_VISIBLE_DEVICES=devices)
    for flags, environ in (
        ("--virtual-local-rank", {"CUDA_VISIBLE_DEVICES": "0,1,2"}),
        ("--virtual-local-rank", {}),
        ("", {"CUDA_VISIBLE_DEVICES": "0"}),
    ):
        assert _config(job_of, f"--nproc-per-node 3 {flags}", **environ).workers == 3


def _config(job_of: JobOf, arguments: str, **environ: str) -> JobConfig:
    job = job_of(arguments, **environ)
    assert isinstance(job, Job)
    return job.config


def test_everything_reaches_the_config(job_of: JobOf) -> None:
    config = _config(
        job_of,
        ETCD + "--min 2 --max 4 --node-unit 2 --nproc-per-node 3 --node-name n --local-addr l "
        "--max-restarts 7 --preload a,b --cold --role r --signals-to-handle SIGUSR1 "
        "--virtual-local-rank --numa-binding node --event-log-handler console --log-format json "
        "--log-dir logs -r 3 -t 0:1 --local-ranks-filter 0,2 --duplicate-stdout-filters x,,y,z "
        "--last-call 1 --join-timeout 2 --rejoin-timeout 3 --fence-timeout 4m --lease-ttl 6 "
        "--grace 7",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${rank}]",
        TORCHELASTIC_HEALTH_CHECK_PORT="9",
        PYTHON_EXEC="/usr/bin/python3",
    )
    times, output = config.timeouts, config.output
    assert (config.min_nodes, config.max_nodes, config.node_unit, config.workers) == (2, 4, 2, 3)
    assert (config.node_name, config.local_addr, config.max_restarts) == ("n", "l", 7)
    assert (config.preload, config.cold, config.role) == (("a", "b"), True, "r")
    assert (config.signals, config.virtual_local_rank) == (("SIGUSR1",), True)
    assert (config.numa_binding, config.event_log_handler) == ("node", "console")
    assert (config.log_format, config.health_port) == ("json", 9)
    assert config.entry.python == "/usr/bin/python3"
    assert (times.last_call, times.join_timeout, times.rejoin_timeout) == (1, 2, 3)
    assert times.fence_timeout == 240
    assert (times.lease_ttl, times.grace) == (6, 7)
    assert (output.log_dir, output.redirects, output.tee) == ("logs", {-1: 3}, {0: 1})
    assert (output.ranks, output.stdout_filters) == (frozenset({0, 2}), ("x,y", "z"))
    assert output.prefix == "[${rank}]"


def test_defaults_are_those_of_the_config(job_of: JobOf) -> None:
    config = _config(job_of, ETCD)
    plain = JobConfig(entry=config.entry, endpoint=config.endpoint, run_id="a")
    assert config == plain


@pytest.mark.parametrize(
    ("arguments", "environ", "field", "expected"),
    [
        ("--rdzv-conf join_timeout=9", {}, "join_timeout", 9),
        ("--rdzv-conf last_call_timeout=9", {}, "last_call", 9),
        ("--rdzv-conf lease_ttl=9", {}, "lease_ttl", 9),
        ("--rdzv-conf 'join_timeout=9,lease_ttl=8'", {}, "lease_ttl", 8),  # as of YAML
        ("--rdzv-conf read_timeout=9", {}, "connect_timeout", 9),
        ("--rdzv-conf fence_timeout=99,batch=9", {}, "fence_timeout", 99),
        ("--rdzv-conf fence_timeout=99,batch=9", {}, "join_batch", 9),
        ("--rdzv-conf batch=0", {}, "join_batch", 0),
        ("--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=4", {}, "lease_ttl", 8),
        ("--rdzv-conf keep_alive_interval=2", {}, "lease_ttl", 6),
        ("--rdzv-conf join_timeout=9 --join-timeout 8", {}, "join_timeout", 8),
        ("--rdzv-conf join_timeout=9", {"PET_JOIN_TIMEOUT": "8"}, "join_timeout", 9),
        ("", {"PET_RDZV_CONF": "join_timeout=9", "ELASTIC_JOIN_TIMEOUT": "8"}, "join_timeout", 9),
        ("--shutdown-timeout 9", {}, "grace", 9),
        ("--shutdown-timeout 9", {"PET_GRACE": "8"}, "grace", 9),
        ("", {"PET_SHUTDOWN_TIMEOUT": "9", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, "grace", 9),
        ("", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}, "grace", 8),
    ],
)
def test_other_spellings_of_time_outs(
    job_of: JobOf,
    parser: Parser,
    arguments: str,
    environ: dict[str, str],
    field: str,
    expected: float,
) -> None:
    if "SHUTDOWN" in f"{arguments} {environ}".upper() and "shutdown_timeout" not in parser.options:
        pytest.skip("torchrun has --shutdown-timeout since torch 2.12")
    assert getattr(_config(job_of, arguments, **environ).timeouts, field) == expected


def test_what_has_no_meaning_is_said(settings_of: SettingsOf) -> None:
    said = "\n".join(
        notes(settings_of("--monitor-interval 1 --rdzv-conf close_timeout=1,join_timeout=2"))
    )
    assert "--monitor-interval=1 has no effect" in said
    assert "--rdzv-conf: no meaning here: close_timeout" in said
    assert notes(settings_of("--max 4")) == []
    assert notes(settings_of("--ssh ssh")) == ["--ssh has no effect without --hosts or --discover"]
    assert notes(settings_of("--ssh ssh --hosts f")) == []
