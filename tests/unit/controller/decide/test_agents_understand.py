"""What a pod is told is what ``elastic-run`` and torchrun understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.job_from_command import Job, read_job
from elastic_runtime.cli.run.store_target import TorchrunTarget
from tests.unit.controller.jobs import CLASSIC, UID, container, job
from tests.unit.controller.simulated import begun

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser()


def started(parser: Parser, made: Any) -> Job | TorchrunTarget:
    """What an agent makes of the first pod of a job."""
    cluster = begun(made)
    name = f"{made['metadata']['name']}-worker-0"
    worker = cluster.manifests[name]["spec"]["containers"][0]
    environ = {each["name"]: each["value"] for each in worker["env"] if "value" in each}
    environ["PET_LOCAL_ADDR"] = "10.1.0.1"  # the kubelet's work
    environ.update(
        {
            each["name"]: "secret"
            for each in worker["env"]
            if "secretKeyRef" in each.get("valueFrom", {})
        }
    )
    argv = [*worker.get("command", ["elastic-run"])[1:], *worker.get("args", ())]
    line = parser.split(argv)
    return read_job(line, read_settings(parser.options, line.given, environ), environ)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("by", ["arguments", "environment"])
def test_elastic_run_is_told_everything(parser: Parser, script: str, by: str) -> None:
    made = job(nprocPerNode=2, maxRestarts=5, checkpoint={"url": "s3://b/c"})
    if by == "arguments":
        made = container(made, args=[script, "--epochs", "1"])
    else:
        made = container(made, command=["elastic-run", script, "--epochs", "1"])
    read = started(parser, made)
    assert isinstance(read, Job)
    assert (read.line.script, read.line.args) == (script, ("--epochs", "1"))
    config = read.config
    assert (config.min_nodes, config.max_nodes, config.workers) == (1, 4, 2)
    assert (config.run_id, config.max_restarts) == (f"{UID}-0", 5)
    assert (config.node_name, config.local_addr) == ("digits-worker-0", "10.1.0.1")
    assert str(config.endpoint).startswith("etcd://10.0.0.7:2379")
    assert config.timeouts.grace == 25
    assert config.metrics_port == 9404


def test_a_classic_manifest_runs_under_elastic_run(parser: Parser, script: str) -> None:
    args = ["--nproc_per_node=1", script, "--epochs=1"]
    read = started(parser, container(CLASSIC, args=args))
    assert isinstance(read, Job)
    assert str(read.config.endpoint).startswith("etcd://etcd-service:2379")
    assert (read.config.min_nodes, read.config.max_nodes) == (1, 2)


def test_an_old_etcd_is_left_to_torch(parser: Parser, script: str) -> None:
    made = container(job(rdzvEndpoint="old:2379", rdzvBackend="etcd-v2"), args=[script])
    assert isinstance(started(parser, made), TorchrunTarget)


def test_logging_in_to_an_etcd(parser: Parser, script: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: True)  # certificates of the pod
    read = started(
        parser,
        container(
            job(
                rdzvEndpoint="etcd:2379",
                etcd={"tls": {"secretName": "certs"}, "auth": {"secretName": "login"}},
            ),
            args=[script],
        ),
    )
    assert isinstance(read, Job)
    endpoint = read.config.endpoint
    assert endpoint.secure
    assert endpoint.tls.ca == "/etc/elastic/etcd-tls/ca.crt"
    assert (endpoint.user, endpoint.password) == ("secret", "secret")
