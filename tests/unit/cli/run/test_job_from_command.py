"""What a command line means: store, run id, the settings of each node, and what is torchrun's."""

from __future__ import annotations

import shlex
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.job_from_command import (
    join_command,
    local_commands,
    local_environ,
    read_job,
)
from elastic_runtime.cli.run.store_host import hosted
from elastic_runtime.cli.run.store_target import EmbeddedTarget, TorchrunTarget, embedded_endpoint
from elastic_runtime.cli.run.torchrun_fallback import as_torchrun, without_effect
from elastic_runtime.config import Endpoint
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser
    from tests.unit.cli.conftest import ConfigOf, JobOf


ETCD = "--rdzv-endpoint etcd://h --run-id a "


@pytest.mark.parametrize(
    ("arguments", "run_id"),
    [
        (ETCD, "a"),
        ("--rdzv-id b", "b"),
        # As in torchrun: a c10d store is hosted by the job's own nodes.
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1", "none"),
    ],
)
def test_run_ids(config_of: ConfigOf, arguments: str, run_id: str) -> None:
    assert config_of(arguments).run_id == run_id


def test_an_embedded_store_gets_a_new_run_id_each_time(config_of: ConfigOf) -> None:
    assert config_of("").run_id != config_of("").run_id


def test_the_join_command_means_the_same_job(
    parser: Parser, job_of: JobOf, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.toml").write_text("lease-ttl = '9s'\npreload = ['a', 'b']\n")
    job = job_of(
        "--max 4 --listen --local-nodes 2 --node-name x --config job.toml --cold "
        "--accelerate-config a/b.yaml",
        "train.py --max 7",
        PET_TEE="3",
    )
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
    assert settings["accelerate_config"] == str(folder / "a/b.yaml")
    for dest in ("listen", "local_nodes", "node_name", "config"):
        assert not settings.given(dest)


@pytest.mark.parametrize("what", ["default", "none"])
def test_whose_settings_of_accelerate_are_meant_is_passed_on(job_of: JobOf, what: str) -> None:
    job = job_of(f"--max 4 --accelerate-config {what}")
    assert f"--accelerate-config={what}" in join_command(job, job.config)


def test_local_nodes_have_names_and_the_script_as_typed(job_of: JobOf) -> None:
    job = job_of("--local-nodes 2 --etcd-user me " + ETCD, "train.py x")
    commands = local_commands(job, job.config)
    assert list(commands) == ["node0", "node1"]
    assert commands["node1"][-4:] == ["--node-name", "node1", "train.py", "x"]
    assert "--local-nodes" not in commands["node0"]


def test_each_local_node_has_a_port_for_its_metrics(job_of: JobOf) -> None:
    for typed, environ in (("--metrics-port 9404", {}), ("", {"ELASTIC_METRICS_PORT": "9404"})):
        job = job_of(f"--local-nodes 2 --metrics-host :: {typed} " + ETCD, **environ)
        commands = local_commands(job, job.config).values()
        ports = [words[words.index("--metrics-port") + 1] for words in commands]
        assert ports == ["9404", "9405"]
        assert all("--metrics-host" in words for words in commands)
        assert "ELASTIC_METRICS_PORT" not in local_environ(job, environ)
        # On this machine it is taken; on another one it may be wanted, or not.
        assert "--metrics-port" not in join_command(job, job.config)


def test_nothing_is_served_unless_asked_for_and_to_nobody_else(config_of: ConfigOf) -> None:
    assert config_of(ETCD).metrics_port == 0
    assert config_of(ETCD, ELASTIC_METRICS_PORT="0").metrics_port == 0
    assert config_of(ETCD + " --metrics-port 9404").metrics_host == "127.0.0.1"


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
    kept = local_environ(job, environ)
    assert kept == {"ELASTIC_GRACE": "4", "ELASTIC_ETCD_PASSWORD": "p", "PATH": "/bin"}

    config = job.config.with_(endpoint=embedded_endpoint("127.0.0.1", 29400))
    line = parser.split(local_commands(job, config)["node1"])
    node = read_job(line, read_settings(parser.options, line.given, kept), kept)
    expected = config.with_(node_name="node1", endpoint=replace(config.endpoint, hosted_here=False))
    assert node.config == expected


def test_where_a_node_is_is_said_to_nodes_of_its_machine_only(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--node-topology z/r --local-nodes 2 --max 3"
    job = job_of(arguments)
    assert job.config.node_topology == ("z", "r")
    for command in local_commands(job, job.config).values():
        assert command[command.index("--node-topology") + 1] == "z/r"
    assert "--node-topology" not in join_command(job, job.config)
    # A file may say it on each machine.
    job = job_of(ETCD + "--node-topology-file /etc/topology")
    assert job.config.node_topology_file == "/etc/topology"
    assert "--node-topology-file /etc/topology" in join_command(job, job.config)


def test_a_topology_comes_before_a_file_of_one(config_of: ConfigOf) -> None:
    config = config_of(ETCD + "--node-topology-file f", ELASTIC_NODE_TOPOLOGY="z/r")
    assert (config.node_topology, config.node_topology_file) == (("z", "r"), "")
    # That nothing is known can be said, too.
    config = config_of(ETCD + "--node-topology -", ELASTIC_NODE_TOPOLOGY_FILE="f")
    assert (config.node_topology, config.node_topology_file) == ((), "")
    config = config_of(ETCD, ELASTIC_NODE_TOPOLOGY_FILE="f")
    assert (config.node_topology, config.node_topology_file) == ((), "f")


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
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1", Endpoint("c10d", ("h:1",))),
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


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_embedded_store_listens_on_loopback_only() -> None:
    with hosted(EmbeddedTarget(), "") as endpoint:
        host, _, port = endpoint.hosts[0].rpartition(":")
        assert (host, endpoint.hosted_here) == ("127.0.0.1", True)
        assert _listens("127.0.0.1", int(port))
        assert not _listens("127.0.0.2", int(port))
    assert not _listens("127.0.0.1", int(port))


def test_the_embedded_store_can_be_opened_to_others() -> None:
    with hosted(EmbeddedTarget(""), "node-a.example") as endpoint:
        host, _, port = endpoint.hosts[0].rpartition(":")
        assert host == "node-a.example"
        assert _listens("127.0.0.2", int(port))


def test_a_taken_port_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"port {port}: Address already in use"),
            hosted(EmbeddedTarget("127.0.0.1", port), ""),
        ):
            pass


def test_a_port_that_nobody_has_asked_for_may_be_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with hosted(EmbeddedTarget(port=port, only_there=False), "") as endpoint:
            other = int(endpoint.hosts[0].rpartition(":")[2])
            assert other != port
            assert _listens("127.0.0.1", other)


def test_what_torchrun_is_told(parser: Parser, folder: Path) -> None:
    if "shutdown_timeout" not in parser.options:
        pytest.skip("torchrun has --shutdown-timeout since torch 2.12")
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
