"""The manifests that a job is made of, and that agents understand what they are told there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.flags.flag_parser import Parser
from elastic_runtime.cli.flags.setting_sources import read_settings
from elastic_runtime.cli.run.job_from_command import Job, read_job
from elastic_runtime.cli.run.store_target import TorchrunTarget
from elastic_runtime.controller.decide import etcd_manifests, manifests
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.unit.controller.jobs import CLASSIC, UID, container, job, template_of
from tests.unit.controller.simulated import begun

if TYPE_CHECKING:
    from pathlib import Path


def pod(made: Any, index: int = 0, attempt: int = 0, endpoint: str = "") -> Any:
    spec = JobSpec.of(made)
    endpoint = endpoint or spec.endpoint or "10.0.0.7:2379"
    return manifests.worker_pod(spec, index, attempt, endpoint, (spec.minimum, spec.maximum), 7)


def env(manifest: Any, of: int = 0) -> dict[str, Any]:
    return {
        each["name"]: each.get("value", each.get("valueFrom"))
        for each in manifest["spec"]["containers"][of].get("env", ())
    }


def test_a_classic_pod_is_started_as_the_classic_controller_did() -> None:
    made = pod(CLASSIC, 1)
    assert made["metadata"]["name"] == "imagenet-worker-1"
    worker = made["spec"]["containers"][0]
    assert worker["args"] == [
        "--rdzv_backend=etcd",
        "--rdzv_endpoint=etcd-service:2379",
        f"--rdzv_id={UID}-0",
        "--nnodes=1:2",
        "--nproc_per_node=1",
        "/workspace/main.py",
        "--epochs=1",
    ]
    labels = made["metadata"]["labels"]
    assert labels["group-name"] == "elastic.pytorch.org"
    assert (labels["job-name"], labels["replica-index"]) == ("imagenet", "1")
    assert labels["replica-type"] == "worker"


def test_a_pod_belongs_to_its_job_and_has_a_name_in_dns() -> None:
    made = pod(job(), 1)
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("digits-worker-1", "digits")
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "name": "digits",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_a_pod_is_told_all_that_its_agent_needs() -> None:
    made = pod(job(nprocPerNode=2, maxRestarts=0, checkpoint={"url": "s3://b/c"}), 3, 1)
    told = env(made)
    assert next(iter(told)) == "POD_IP"  # before what refers to it
    assert told["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    del told["POD_IP"]
    assert told == {
        "PET_LOCAL_ADDR": "$(POD_IP)",
        "ELASTIC_NODE_LIFE": "7",
        "ELASTIC_TERMINATION_LOG": "/dev/termination-log",
        "PET_RDZV_BACKEND": "etcd-v3",
        "PET_RDZV_ENDPOINT": "10.0.0.7:2379",
        "PET_RDZV_ID": f"{UID}-1",
        "PET_NNODES": "1:4",
        "PET_NPROC_PER_NODE": "2",
        "PET_MAX_RESTARTS": "0",
        "ELASTIC_NODE_NAME": "digits-worker-3",
        "ELASTIC_METRICS_PORT": "9404",
        "ELASTIC_METRICS_HOST": "::",
        "ELASTIC_GRACE": "25",
        "ELASTIC_CHECKPOINT": "s3://b/c",
    }


def test_a_url_says_itself_what_it_is() -> None:
    made = pod(job(rdzvEndpoint="etcds://a:1,b:2/jobs"))
    assert "PET_RDZV_BACKEND" not in env(made)
    assert made["spec"]["containers"][0]["args"][0] == "--rdzv_endpoint=etcds://a:1,b:2/jobs"


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({}, True),
        ({"args": ["train.py"]}, True),
        ({"command": ["elastic-run"], "args": ["train.py"]}, True),
        ({"command": ["python", "-m", "torch.distributed.run"], "args": ["train.py"]}, True),
        ({"command": ["elastic-run", "train.py"]}, False),
        ({"command": ["/bin/bash", "-c"], "args": ["elastic-run train.py"]}, False),
    ],
)
def test_arguments_are_added_where_they_reach_the_launcher(
    fields: dict[str, Any], added: bool
) -> None:
    worker = pod(container(job(), **fields))["spec"]["containers"][0]
    first = (worker.get("args") or [""])[0]
    assert first.startswith("--rdzv") is added
    assert (worker.get("args") or [])[-1:] == list(fields.get("args", ()))[-1:] or added
    assert worker.get("command") == fields.get("command")


def test_what_the_template_says_stands() -> None:
    made = container(job(), env=[{"name": "PET_MAX_RESTARTS", "value": "7"}])
    made["spec"]["maxRestarts"] = 1
    template = template_of(made)
    template["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    template["spec"] |= {"terminationGracePeriodSeconds": 120, "restartPolicy": "Always"}
    worker = pod(made)
    assert env(worker)["PET_MAX_RESTARTS"] == "7"
    assert env(worker)["ELASTIC_GRACE"] == "115"
    assert worker["metadata"]["labels"]["team"] == "a"
    assert worker["metadata"]["annotations"]["note"] == "b"
    assert worker["spec"]["restartPolicy"] == "Never"  # the controller restarts


def test_sidecars_are_left_alone() -> None:
    made = job()
    sidecar = {"name": "log", "image": "b", "args": ["-v"]}
    containers = template_of(made)["spec"]["containers"]
    containers.insert(0, sidecar)
    containers[1]["name"] = "elasticjob-worker"
    assert pod(made)["spec"]["containers"][0] == {"name": "log", "image": "b", "args": ["-v"]}


def mounts(manifest: Any) -> dict[str, str]:
    return {
        each["mountPath"]: each["name"]
        for each in manifest["spec"]["containers"][0]["volumeMounts"]
    }


def test_shared_memory_a_claim_and_certificates_are_mounted() -> None:
    made = pod(
        job(
            rdzvEndpoint="etcd:2379",
            checkpoint={"claimName": "disk"},
            etcd={"tls": {"secretName": "certs"}, "auth": {"secretName": "login"}},
        )
    )
    volumes = {each.pop("name"): each for each in made["spec"]["volumes"]}
    at = {path: volumes[name] for path, name in mounts(made).items()}
    assert at["/dev/shm"] == {"emptyDir": {"medium": "Memory"}}
    assert at["/checkpoints"] == {"persistentVolumeClaim": {"claimName": "disk"}}
    assert at["/etc/elastic/etcd-tls"] == {"secret": {"secretName": "certs"}}
    told = env(made)
    assert told["ELASTIC_CHECKPOINT"] == "/checkpoints"
    assert told["ELASTIC_ETCD_CA"] == "/etc/elastic/etcd-tls/ca.crt"
    assert told["ELASTIC_ETCD_USER"] == {"secretKeyRef": {"name": "login", "key": "username"}}
    assert told["ELASTIC_ETCD_PASSWORD"] == {"secretKeyRef": {"name": "login", "key": "password"}}


def test_a_mount_of_the_template_is_not_covered_and_names_do_not_clash() -> None:
    made = container(job(), volumeMounts=[{"name": "mine", "mountPath": "/dev/shm/"}])
    made["spec"]["checkpoint"] = {"claimName": "disk"}
    pod_spec = template_of(made)["spec"]
    pod_spec["volumes"] = [{"name": "mine"}, {"name": "elastic-checkpoint"}]
    worker = pod(made)
    names = [each["name"] for each in worker["spec"]["volumes"]]
    assert len(set(names)) == len(names) == 3
    assert mounts(worker)["/dev/shm/"] == "mine"
    assert "/dev/shm" not in mounts(worker)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [("10.0.0.7", "10.0.0.7:2379"), ("fd00::7", "[fd00::7]:2379"), ("", ""), ("None", "")],
)
def test_workers_get_the_address_of_the_service(address: str, endpoint: str) -> None:
    assert manifests.etcd_endpoint(JobSpec.of(job()), {"digits-etcd": address}) == endpoint


def test_all_pods_of_a_job_have_its_priority_unless_they_name_another() -> None:
    made = job(priorityClassName="high")
    assert pod(made)["spec"]["priorityClassName"] == "high"
    assert etcd_manifests.etcd_pod(JobSpec.of(made))["spec"]["priorityClassName"] == "high"
    template_of(made)["spec"]["priorityClassName"] = "low"
    assert pod(made)["spec"]["priorityClassName"] == "low"
    made["spec"]["etcd"] = {"template": {"spec": {"priorityClassName": "low"}}}
    assert etcd_manifests.etcd_pod(JobSpec.of(made))["spec"]["priorityClassName"] == "low"
    assert "priorityClassName" not in pod(job())["spec"]


def test_a_pod_is_found_by_prometheus_unless_its_template_says_otherwise() -> None:
    notes = pod(job())["metadata"]["annotations"]
    assert (notes["prometheus.io/scrape"], notes["prometheus.io/port"]) == ("true", "9404")
    made = job()
    template_of(made)["metadata"] = {"annotations": {"prometheus.io/scrape": "false"}}
    assert pod(made)["metadata"]["annotations"]["prometheus.io/scrape"] == "false"


def test_a_read_only_root_gets_a_place_for_temporary_files() -> None:
    read_only = container(job(), securityContext={"readOnlyRootFilesystem": True})
    worker = pod(read_only)["spec"]["containers"][0]
    assert {"name": "elastic-tmp", "mountPath": "/tmp"} in worker["volumeMounts"]
    own = [{"name": "mine", "mountPath": "/tmp"}]
    worker = pod(container(read_only, volumeMounts=own))["spec"]["containers"][0]
    assert [one["name"] for one in worker["volumeMounts"] if one["mountPath"] == "/tmp"] == ["mine"]
    mounts = pod(job())["spec"]["containers"][0]["volumeMounts"]
    assert not [one for one in mounts if one["mountPath"] == "/tmp"]


def test_the_last_words_of_a_container_are_its_own_or_its_log() -> None:
    worker = pod(job())["spec"]["containers"][0]
    assert worker["terminationMessagePolicy"] == "FallbackToLogsOnError"
    other = container(job(), terminationMessagePath="/words", terminationMessagePolicy="File")
    assert env(pod(other))["ELASTIC_TERMINATION_LOG"] == "/words"
    assert pod(other)["spec"]["containers"][0]["terminationMessagePolicy"] == "File"


# ---------------------------------------------------------------- what agents make of it


@pytest.fixture(scope="module")
def parser() -> Parser:
    return Parser()


def started(parser: Parser, made: Any) -> Job | TorchrunTarget:
    """What an agent makes of the first pod of a job."""
    cluster = begun(made)
    worker = cluster.worker(0)
    environ = {each["name"]: each["value"] for each in worker["env"] if "value" in each}
    environ["PET_LOCAL_ADDR"] = "10.1.0.1"  # the kubelet's work
    secrets = [each for each in worker["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    environ |= {each["name"]: "secret" for each in secrets}
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
    etcd = {"tls": {"secretName": "certs"}, "auth": {"secretName": "login"}}
    made = job(rdzvEndpoint="etcd:2379", etcd=etcd)
    read = started(parser, container(made, args=[script]))
    assert isinstance(read, Job)
    endpoint = read.config.endpoint
    assert endpoint.secure
    assert endpoint.tls.ca == "/etc/elastic/etcd-tls/ca.crt"
    assert (endpoint.user, endpoint.password) == ("secret", "secret")
