"""What a command line means: bounds, store, run id, and the settings of the node."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.build_config import notes
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.job_from_command import (
    Job,
    join_command,
    local_commands,
    local_environ,
    read_job,
)
from elastic_runtime.cli.run.store_target import (
    EmbeddedTarget,
    TorchrunTarget,
    embedded_endpoint,
    read_bounds,
)
from elastic_runtime.cli.run.torchrun_fallback import as_torchrun, without_effect
from elastic_runtime.config import Endpoint, JobConfig
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser
    from tests.unit.cli.conftest import JobOf, SettingsOf

ETCD = "--rdzv-endpoint etcd://h --run-id a "


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


@pytest.mark.parametrize(
    ("arguments", "run_id"),
    [
        (ETCD, "a"),
        ("--rdzv-id b", "b"),
        # As in torchrun: a c10d store is hosted by the job's own nodes.
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1", "none"),
    ],
)
def test_run_ids(job_of: JobOf, arguments: str, run_id: str) -> None:
    assert _config(job_of, arguments).run_id == run_id


def test_an_embedded_store_gets_a_new_run_id_each_time(job_of: JobOf) -> None:
    assert _config(job_of, "").run_id != _config(job_of, "").run_id


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--rdzv-endpoint etcd://h", "name this one with --run-id"),
        ("--run-id a/b", "no name for a run"),
        ("--rdzv-endpoint h:1 --run-id a", "does not say what it is"),
        (ETCD + "--listen", "--listen is for the embedded store"),
        ("--listen=a:b:c", "no address to listen at"),
        ("--node-unit 0", "--node-unit=0: it must lie between 1 and"),
        ("--max 2 --node-unit 3", "--node-unit=3: it must lie between 1 and the maximum of 2"),
        ("--max-restarts -1", "--max-restarts=-1: it cannot be negative"),
        ("--nproc-per-node 0", "--nproc-per-node=0: a node runs at least one worker"),
        ("--nproc-per-node many", "it is not a number of workers"),
        ("--grace 1 --shutdown-timeout 2", "--grace=1 and --shutdown-timeout=2 say the same"),
        ("--rdzv-conf join_timeout=soon", "join_timeout='soon' is not a number of seconds"),
        ("--logs-specs mine", "--logs-specs=mine: logs lie in a directory for each round and rank"),
        ("-m --no-python", "--module and --no-python exclude each other"),
        ("--etcd-password-file nowhere", "--etcd-password-file 'nowhere' cannot be read"),
    ],
)
def test_bad_settings(job_of: JobOf, arguments: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        job_of(arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


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
    job_of: JobOf, arguments: str, environ: dict[str, str], field: str, expected: float
) -> None:
    assert getattr(_config(job_of, arguments, **environ).timeouts, field) == expected


def test_what_has_no_meaning_is_said(settings_of: SettingsOf) -> None:
    said = "\n".join(
        notes(settings_of("--monitor-interval 1 --rdzv-conf close_timeout=1,join_timeout=2"))
    )
    assert "--monitor-interval=1 has no effect" in said
    assert "--rdzv-conf: no meaning here: close_timeout" in said
    assert notes(settings_of("--max 4")) == []


def test_the_join_command_means_the_same_job(
    parser: Parser, job_of: JobOf, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.toml").write_text("lease-ttl = '9s'\npreload = ['a', 'b']\n")
    job = job_of(
        "--max 4 --listen --local-nodes 2 --node-name x --config job.toml --cold",
        "train.py --max 7",
        PET_TEE="3",
    )
    assert isinstance(job, Job)
    config = job.config.with_(endpoint=embedded_endpoint("10.0.0.5", 29400))
    _, *typed = shlex.split(join_command(job, config).replace("-m elastic_runtime", ""))
    monkeypatch.chdir("/")

    line = parser.split(typed)
    settings = read_settings(parser.options, line.given, {})
    assert (line.script, line.args) == (str(folder / "train.py"), ("--max", "7"))
    assert settings["rdzv_endpoint"] == "c10d://10.0.0.5:29400"
    assert settings["rdzv_id"] == config.run_id
    assert (settings["min"], settings["max"]) == (1, 4)
    assert (settings["lease_ttl"], settings["preload"]) == (9, ("a", "b"))
    assert (settings["cold"], settings["tee"]) == (True, {-1: 3})
    for dest in ("listen", "local_nodes", "node_name", "config"):
        assert not settings.given(dest)


def test_local_nodes_have_names_and_the_script_as_typed(job_of: JobOf) -> None:
    job = job_of("--local-nodes 2 --etcd-user me " + ETCD, "train.py x")
    assert isinstance(job, Job)
    commands = local_commands(job, job.config)
    assert list(commands) == ["node0", "node1"]
    assert commands["node1"][-4:] == ["--node-name", "node1", "train.py", "x"]
    assert "--local-nodes" not in commands["node0"]


def test_each_local_node_has_a_port_for_its_metrics(job_of: JobOf) -> None:
    for typed, environ in (("--metrics-port 9404", {}), ("", {"ELASTIC_METRICS_PORT": "9404"})):
        job = job_of(f"--local-nodes 2 --metrics-host :: {typed} " + ETCD, **environ)
        assert isinstance(job, Job)
        ports = [words[words.index("--metrics-port") + 1] for words in _words(job)]
        assert ports == ["9404", "9405"]
        assert all("--metrics-host" in words for words in _words(job))
        assert "ELASTIC_METRICS_PORT" not in local_environ(job, environ)
        # On this machine it is taken; on another one it may be wanted, or not.
        assert "--metrics-port" not in join_command(job, job.config)


def _words(job: Job) -> list[list[str]]:
    return list(local_commands(job, job.config).values())


def test_there_are_ports_for_all_local_nodes(job_of: JobOf) -> None:
    with pytest.raises(UsageError, match=r"--metrics-port=65535: 2 nodes need a port each"):
        job_of("--local-nodes 2 --metrics-port 65535 " + ETCD)
    with pytest.raises(UsageError, match=r"ELASTIC_METRICS_PORT='65536' is not a port"):
        job_of(ETCD, ELASTIC_METRICS_PORT="65536")


def test_nothing_is_served_unless_asked_for_and_to_nobody_else(job_of: JobOf) -> None:
    assert _config(job_of, ETCD).metrics_port == 0
    assert _config(job_of, ETCD, ELASTIC_METRICS_PORT="0").metrics_port == 0
    assert _config(job_of, ETCD + " --metrics-port 9404").metrics_host == "127.0.0.1"


def test_local_nodes_do_not_inherit_what_was_said_to_their_parent(
    parser: Parser, job_of: JobOf, folder: Path
) -> None:
    (folder / "job.toml").write_text("listen = ''\nlease-ttl = 9\n")
    environ = {
        "PET_STANDALONE": "1",
        "PET_RUN_ID": "other",
        "ELASTIC_LOCAL_NODES": "2",
        "ELASTIC_CONFIG": "job.toml",
        "ELASTIC_GRACE": "4",
        "ELASTIC_ETCD_PASSWORD": "p",
        "PATH": "/bin",
    }
    job = job_of("", **environ)
    assert isinstance(job, Job)
    kept = local_environ(job, environ)
    assert kept == {"ELASTIC_GRACE": "4", "ELASTIC_ETCD_PASSWORD": "p", "PATH": "/bin"}

    config = job.config.with_(endpoint=embedded_endpoint("127.0.0.1", 29400))
    line = parser.split(local_commands(job, config)["node1"])
    node = read_job(line, read_settings(parser.options, line.given, kept), kept)
    assert isinstance(node, Job)
    expected = config.with_(node_name="node1", endpoint=replace(config.endpoint, hosted_here=False))
    assert node.config == expected


def test_what_torchrun_is_told(parser: Parser, folder: Path) -> None:
    typed = "--nnodes 2 --node-rank 1 --master-addr h --max-restarts 2 --lease-ttl 3 --grace 4"
    line = parser.split([*typed.split(), "train.py", "--x"])
    settings = read_settings(parser.options, line.given, {"ELASTIC_TEE": "3"})
    told = as_torchrun(line, settings, TorchrunTarget("static"), read_bounds(settings))
    assert (
        told
        == (
            "--nnodes 2:2 --rdzv-backend static --shutdown-timeout 4 --max-restarts 2 --tee 3 "
            "--node-rank 1 --master-addr h train.py --x"
        ).split()
    )
    assert without_effect(settings) == ["--lease-ttl"]


def test_torchrun_keeps_its_own_default_of_max_restarts(parser: Parser, folder: Path) -> None:
    line = parser.split(["--rdzv-backend", "static", "train.py"])
    settings = read_settings(parser.options, line.given, {})
    told = as_torchrun(line, settings, TorchrunTarget("static"), read_bounds(settings))
    assert "--max-restarts" not in told
