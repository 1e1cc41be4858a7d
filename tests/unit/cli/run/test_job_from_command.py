"""What a command line means: bounds, store, run id, and the settings of the node."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.job_from_command import (
    Job,
    join_command,
    local_commands,
    local_environ,
    read_job,
)
from elastic_runtime.cli.run.store_target import (
    embedded_endpoint,
)
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.flag_parser import Parser
    from elastic_runtime.config import JobConfig
    from tests.unit.cli.conftest import JobOf

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
        ("--node-topology a//b", "--node-topology='a//b' is not a topology (such as zone/block"),
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
def test_bad_settings(job_of: JobOf, parser: Parser, arguments: str, words: str) -> None:
    if "--shutdown" in arguments and "shutdown_timeout" not in parser.options:
        pytest.skip("torchrun has --shutdown-timeout since torch 2.12")
    with pytest.raises(UsageError) as caught:
        job_of(arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def _config(job_of: JobOf, arguments: str, **environ: str) -> JobConfig:
    job = job_of(arguments, **environ)
    assert isinstance(job, Job)
    return job.config


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
    assert settings["accelerate_config"] == str(folder / "a/b.yaml")
    for dest in ("listen", "local_nodes", "node_name", "config"):
        assert not settings.given(dest)


@pytest.mark.parametrize("what", ["default", "none"])
def test_whose_settings_of_accelerate_are_meant_is_passed_on(job_of: JobOf, what: str) -> None:
    job = job_of(f"--max 4 --accelerate-config {what}")
    assert isinstance(job, Job)
    assert f"--accelerate-config={what}" in join_command(job, job.config)


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


def test_where_a_node_is_is_said_to_nodes_of_its_machine_only(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--node-topology z/r --local-nodes 2 --max 3"
    job = job_of(arguments)
    assert isinstance(job, Job)
    assert job.config.node_topology == ("z", "r")
    for command in local_commands(job, job.config).values():
        assert command[command.index("--node-topology") + 1] == "z/r"
    assert "--node-topology" not in join_command(job, job.config)
    # A file may say it on each machine.
    job = job_of(ETCD + "--node-topology-file /etc/topology")
    assert isinstance(job, Job)
    assert job.config.node_topology_file == "/etc/topology"
    assert "--node-topology-file /etc/topology" in join_command(job, job.config)


def test_a_topology_comes_before_a_file_of_one(job_of: JobOf) -> None:
    config = _config(job_of, ETCD + "--node-topology-file f", ELASTIC_NODE_TOPOLOGY="z/r")
    assert (config.node_topology, config.node_topology_file) == (("z", "r"), "")
    # That nothing is known can be said, too.
    config = _config(job_of, ETCD + "--node-topology -", ELASTIC_NODE_TOPOLOGY_FILE="f")
    assert (config.node_topology, config.node_topology_file) == ((), "")
    config = _config(job_of, ETCD, ELASTIC_NODE_TOPOLOGY_FILE="f")
    assert (config.node_topology, config.node_topology_file) == ((), "f")
