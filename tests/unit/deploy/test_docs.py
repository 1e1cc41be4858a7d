"""What docs/kubernetes.md tells people to write and to type."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.processes import PROGRAM_TIMEOUT
from tests.unit.deploy.admission import elasticjob
from tests.unit.deploy.files import DEPLOY, ROOT, objects
from tests.unit.deploy.test_crd import changed, fields, smallest

TEXT = (ROOT / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [body for language, body in BLOCKS if language == "bash"]


def block(mark: str) -> str:
    """The commands that contain something."""
    [found] = [body for body in COMMANDS if mark in body]
    return found


def test_each_path_is_there() -> None:
    paths = set(re.findall(r"deploy/[\w./-]+[\w/]|scripts/[\w-]+", TEXT))
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_manifest_is_valid() -> None:
    for language, body in BLOCKS:
        if language != "yaml":
            continue
        [found] = objects(body)
        if "kind" in found:
            kubernetes_validate.validate(found, "1.34", strict=True)
        else:
            [(name, value)] = found.items()
            assert fields(changed(smallest(), f"spec.{name}", value)) == []


def test_each_field_of_the_spec_is_told() -> None:
    names = elasticjob().schema["properties"]["spec"]["properties"]
    assert [name for name in names if f"`{name}" not in TEXT and f".{name}" not in TEXT] == []


def test_the_job_without_a_manifest_is_the_sample() -> None:
    [line] = [
        line
        for line in block("elasticctl submit").replace("\\\n", " ").splitlines()
        if line.startswith("elasticctl submit")
    ]
    words = shlex.split(line)[1:]
    words[words.index("--") : words.index("--")] = ["--dry-run", "-o", "yaml"]
    command = [str(Path(sys.executable).parent / "elasticctl"), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT)
    assert ran.returncode == 0, ran.stderr
    job = yaml.safe_load(ran.stdout)
    assert elasticjob().refusals(job) == []
    [sample] = [
        each for each in objects(DEPLOY / "samples/digits.yaml") if "checkpoint" in str(each)
    ]
    for name in ("minReplicas", "maxReplicas", "checkpoint"):
        assert job["spec"][name] == sample["spec"][name]


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_the_certificates_are_made_out_to_the_members(tmp_path: Path) -> None:
    script = f"set -euo pipefail\n{block('openssl req -x509')}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", "etcd-cluster.crt", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    made_out_to = set(re.findall(r"DNS:([\w.-]+)", shown))
    text = (DEPLOY / "etcd-cluster.yaml").read_text()
    hosts = set(re.findall(r"=https://(etcd-cluster-\d[\w.-]*):2380", text))
    assert len(hosts) == 3
    assert hosts | {"localhost", "etcd-cluster", "etcd-cluster.elastic-job.svc"} == made_out_to


def below(path: str, names: str) -> list[str]:
    """The paths of fields below a path."""
    return [f"{path}.{name}" for name in names.split()]


# The fields of Kubeflow's types, as they are in its sources: kubeflow/training-operator, release
# 1.9, and kubeflow/trainer, v2.0.0 to v2.3.0.
PYTORCHJOB = [
    *("pytorchReplicaSpecs.Master", "pytorchReplicaSpecs.Worker.replicas", "nprocPerNode"),
    "pytorchReplicaSpecs.Worker.restartPolicy",
    *below(
        "elasticPolicy", "minReplicas maxReplicas rdzvBackend rdzvPort rdzvHost rdzvId rdzvConf"
    ),
    *below("elasticPolicy", "standalone nProcPerNode maxRestarts metrics"),
    *below("runPolicy", "cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds suspend"),
    *below("runPolicy", "backoffLimit managedBy"),
    *below("runPolicy.schedulingPolicy", "minAvailable queue minResources priorityClass"),
    "runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
]
TRAINJOB = [
    *below("runtimeRef", "name apiGroup kind"),
    *("suspend", "managedBy", "labels", "annotations", "activeDeadlineSeconds"),
    *("initializer.dataset.storageUri", "initializer.model.storageUri"),
    *below("trainer", "image command args env numNodes resourcesPerNode numProcPerNode"),
    *("podSpecOverrides", "podTemplateOverrides", "runtimePatches", "mlPolicy.numNodes"),
    *below("mlPolicy.torch", "numProcPerNode envInjection"),
    *below("mlPolicy.torch.elasticPolicy", "minNodes maxRestarts metrics"),
    *below("podGroupPolicy", "coscheduling volcano"),
    *below("template", "metadata spec.replicatedJobs"),
]


@pytest.mark.parametrize(
    ("title", "names"), [("From PyTorchJob", PYTORCHJOB), ("From Trainer v2", TRAINJOB)]
)
def test_each_field_that_people_come_with_is_told(title: str, names: list[str]) -> None:
    text = (ROOT / "docs" / "kubernetes-migration.md").read_text()
    _, _, part = text.partition(f"## {title}\n")
    rows = re.findall(r"^\| (.+?) \| ", part.partition("\n## ")[0], re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert [name for name in names if name not in told] == []
