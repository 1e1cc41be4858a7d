"""``elasticctl submit``: what flags and files become; what is refused is in test_mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elastic_runtime.cli.kube.build_job import (
    Submission,
    make_job,
    name_after,
    parse_job,
    parse_pod,
)
from elastic_runtime.cli.kube.job_fields import check_fields
from elastic_runtime.controller.spec.job_spec import LONGEST_NAME, InvalidSpec, JobSpec
from elastic_runtime.errors import UsageError
from tests.unit.cli.kube.job_objects import a_job

MANIFEST = """
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: digits}
spec:
  minReplicas: 1
  maxReplicas: 2
  replicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - {name: elasticjob-worker, image: "x:1", args: [train.py]}
"""


# What the standard "restricted" demands of a pod and of its containers.
RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _job(**flags: Any) -> dict[str, Any]:
    return make_job(Submission(**{"script": "train.py", "image": "x:1", "name": "one", **flags}))


def _container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return found[0]


def test_every_flag_has_its_place() -> None:
    sizes = {"low": 2, "high": 4, "replicas": 3, "nproc": "2", "spares": 1, "max_restarts": 0}
    resources = {"gpus": 2, "cpu": "500m", "memory": "8Gi"}
    places = {"checkpoint": "s3://bucket/run", "endpoint": "etcd://etcd:2379", "queue": "team"}
    script = {"namespace": "team", "args": ("--lr", "1"), "env": ("A=b=c", "EMPTY=")}
    container = {
        "name": "elasticjob-worker",
        "image": "x:1",
        "args": ["train.py", "--lr", "1"],
        "env": [{"name": "A", "value": "b=c"}, {"name": "EMPTY", "value": ""}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "8Gi"},
            "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"},
        },
        "securityContext": RESTRICTED_CONTAINER,
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": RESTRICTED_POD,
        "containers": [container],
    }
    assert _job(**sizes, **resources, **places, **script) == {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "one", "namespace": "team"},
        "spec": {
            "minReplicas": 2,
            "maxReplicas": 4,
            "nprocPerNode": 2,
            "spares": 1,
            "maxRestarts": 0,
            "rdzvEndpoint": "etcd://etcd:2379",
            "scheduling": {"queue": "team"},
            "checkpoint": {"url": "s3://bucket/run"},
            "replicaSpecs": {"Worker": {"replicas": 3, "template": {"spec": pod}}},
        },
    }


def test_what_was_not_said_is_not_there() -> None:
    job = _job()
    assert job["metadata"] == {"name": "one"}
    assert job["spec"].keys() == {"minReplicas", "maxReplicas", "replicaSpecs"}
    assert _container(job).keys() == {"name", "image", "args", "securityContext"}


def test_what_else_a_pod_has_is_merged_into_it() -> None:
    text = """
nodeSelector: {pool: gpu}
securityContext: {runAsNonRoot: false}
containers:
  - name: elasticjob-worker
    env: [{name: A, value: c}, {name: B, value: d}]
  - {name: proxy, image: "proxy:1"}
"""
    job = _job(env=("A=b",), memory="8Gi", pod_spec=parse_pod(text, "pod.yaml"))
    spec = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["securityContext"]["runAsNonRoot"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    worker, proxy = spec["containers"]
    assert worker["env"] == [{"name": "A", "value": "c"}, {"name": "B", "value": "d"}]
    assert (worker["image"], worker["resources"]["limits"]) == ("x:1", {"memory": "8Gi"})
    assert proxy == {"name": "proxy", "image": "proxy:1"}


def test_a_template_has_labels_too() -> None:
    text = "metadata: {labels: {team: a}}\nspec: {priorityClassName: high}"
    job = _job(pod_spec=parse_pod(text, "pod.yaml"))
    template = job["spec"]["replicaSpecs"]["Worker"]["template"]
    assert template["metadata"] == {"labels": {"team": "a"}}
    assert template["spec"]["priorityClassName"] == "high"
    assert _container(job)["image"] == "x:1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "one object"),
        ("- a", "one object"),
        ("a: 1\n---\nb: 2", "one object"),
        ("a: [", "is not YAML"),
        ("spec: {}\ncontainers: []", "'containers'"),
    ],
)
def test_what_is_no_pod_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        parse_pod(text, "pod.yaml")
    assert "pod.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ({}, (1, 1, 1)),
        ({"high": 4}, (1, 4, 4)),
        ({"low": 2}, (2, 2, 2)),
        ({"replicas": 3}, (1, 3, 3)),
        ({"low": 1, "high": 4, "replicas": 2}, (1, 2, 4)),
    ],
)
def test_sizes_that_were_not_said_follow_from_the_others(
    flags: dict[str, int], sizes: tuple[int, int, int]
) -> None:
    job = _job(**flags)
    spec = job["spec"]
    size = spec["replicaSpecs"]["Worker"]["replicas"]
    assert (spec["minReplicas"], size, spec["maxReplicas"]) == sizes
    # The controller reads the same.
    read = JobSpec.of(job)
    assert (read.minimum, read.replicas, read.maximum) == sizes


def test_a_gpu_gets_a_worker_unless_it_is_said_otherwise() -> None:
    assert _job(gpus=4)["spec"]["nprocPerNode"] == 4
    assert _job(gpus=4, nproc="1")["spec"]["nprocPerNode"] == 1
    assert _job(nproc="auto")["spec"]["nprocPerNode"] == "auto"


def test_a_module_is_run_with_m() -> None:
    job = _job(script="package.train", module=True, args=("x",))
    assert _container(job)["args"] == ["-m", "package.train", "x"]


def test_a_claim_is_a_checkpoint_too() -> None:
    assert _job(checkpoint="runs")["spec"]["checkpoint"] == {"claimName": "runs"}


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"high": 2, "replicas": 3}, "spec.replicaSpecs.Worker.replicas"),
        ({"low": 2, "high": 4, "replicas": 1}, "spec.replicaSpecs.Worker.replicas"),
        ({"name": "a" * (LONGEST_NAME + 1)}, "metadata.name"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_field(
    flags: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        _job(**flags)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("script", "module", "name"),
    [
        ("train.py", False, "train-x1"),
        ("/app/My_Script.v2.py", False, "my-script-v2-x1"),
        ("package.train", True, "train-x1"),
        ("2d.py", False, "job-2d-x1"),
        ("__.py", False, "job-x1"),
        ("a" * 99, False, "a" * 40 + "-x1"),
    ],
)
def test_a_job_without_a_name_is_called_after_its_script(
    script: str, module: bool, name: str
) -> None:
    assert name_after(script, "x1", module) == name
    _job(name=name)  # it can be one


def test_a_manifest_is_read_as_it_is() -> None:
    job = parse_job(MANIFEST, "f")
    assert job["metadata"] == {"name": "digits"}
    assert _container(job)["image"] == "x:1"
    assert parse_job(json.dumps(job), "f") == job
    assert parse_job(MANIFEST, "f", "team")["metadata"] == {"name": "digits", "namespace": "team"}
    assert parse_job(f"---\n{MANIFEST}---\n", "f") == job


def test_a_job_has_only_fields_that_there_are() -> None:
    check_fields(a_job())
    check_fields({"metadata": {"labels": {"anything": "x"}}, "spec": None})
