"""The cluster of the end-to-end tests, with what is installed in it for their time.

``KUBECONFIG`` and ``ELASTIC_TEST_IMAGE`` choose a real one; the image (that of a worker) must be
on its nodes, or be pulled from where its name says. With ``ELASTIC_TEST_CLUSTER=docker`` a small
one is made of containers, with the image that ``scripts/build-images`` makes unless one is named.
"""

from __future__ import annotations

import copy
import os
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.cluster.cluster import ROOT, Cluster, Job, NotInTime, Object, manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

_CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace")
_STORE_PORT = 9000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells what there was in the cluster when a test failed."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    told = call.excinfo is not None and call.excinfo.errisinstance(NotInTime)
    if report.when == "call" and report.failed and cluster is not None and not told:
        report.sections.append(("the cluster", cluster.story()))
    return report


@pytest.fixture(scope="session")
def _access(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A kubeconfig and the name of the image."""
    image = os.environ.get("ELASTIC_TEST_IMAGE", "")
    if os.environ.get("ELASTIC_TEST_CLUSTER") == "docker":
        if not request.getfixturevalue("docker_works"):
            pytest.skip("no cluster: it was to be made of containers, and docker does not answer")
        directory: Path = tmp_path_factory.mktemp("kube")
        yield from _in_docker(directory, image)
    elif not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: KUBECONFIG and ELASTIC_TEST_IMAGE name one and the worker's image")
    elif not image:
        pytest.skip("no image: ELASTIC_TEST_IMAGE names that of a worker, for KUBECONFIG's cluster")
    else:
        yield os.environ["KUBECONFIG"], image


def _in_docker(directory: Path, image: str) -> Iterator[tuple[str, str]]:
    from tests.kube.docker_kubelet import DockerCluster

    if not image:
        build = [ROOT / "scripts" / "build-images", "worker"]
        built = subprocess.run(build, capture_output=True, text=True, timeout=1500)
        assert built.returncode == 0, built.stderr
        image = built.stdout.strip()
    made = DockerCluster()
    try:
        yield str(made.fake.kubeconfig(directory / "kubeconfig")), image
    finally:
        made.close()


@pytest.fixture(scope="session")
def cluster(_access: tuple[str, str]) -> Iterator[Cluster]:
    """The cluster, with the controller installed and a store for checkpoints.

    What was there before stays; everything else is removed at the end.
    """
    found = Cluster.of(*_access, prefix=f"elastic-test-{uuid.uuid4().hex[:6]}")
    wanted = [*_installation(found), *_store(found)]
    binding = next(item for item in wanted if item["kind"] == "ClusterRoleBinding")
    if found.find(binding) is not None:
        pytest.fail(
            "a controller is installed in this cluster already (ClusterRoleBinding "
            f"{binding['metadata']['name']}), and two would both look after the tests' jobs"
        )
    ours = [item for item in wanted if found.find(item) is None]
    try:
        for item in wanted:
            found.apply(item)
            if item["kind"] == "CustomResourceDefinition":
                found.wait_for(lambda item=item: _has(found, item, "Established"), "the definition")
        ready = lambda: _available(found)  # noqa: E731
        found.wait_for(ready, "controller and store are ready", 180)
        yield found
    finally:
        for item in reversed(ours):
            found.delete(item)
        for item in ours:
            if item["kind"] == "Namespace":
                found.wait_for(lambda item=item: found.find(item) is None, "its namespaces end")


@pytest.fixture
def submit(cluster: Cluster) -> Iterator[Callable[..., Job]]:
    """Submits ElasticJobs that train digits; each is deleted after the test, and leaves nothing."""
    jobs: list[Job] = []

    def begin(name: str, *args: str, command: tuple[str, ...] = (), **spec: object) -> Job:
        item = _digits(cluster, name, args, command)
        worker = item["spec"]["replicaSpecs"]["Worker"]
        if "replicas" in spec:
            worker["replicas"] = spec.pop("replicas")
        worker["template"]["spec"] |= spec.pop("template", {})
        item["spec"] |= spec
        cluster.apply(item)
        jobs.append(Job(cluster, name))
        return jobs[-1]

    yield begin
    for job in jobs:
        if cluster.find(_digits(cluster, job.name)) is not None:
            job.delete()
        cluster.wait_for(lambda job=job: not job.everything(), f"{job.name} leaves nothing behind")


def _digits(
    cluster: Cluster, name: str, args: tuple[str, ...] = (), command: tuple[str, ...] = ()
) -> Object:
    """A job that is small enough for a node of two cores to run several pods."""
    environment = {
        "AWS_ENDPOINT_URL": "http://$(STORE):9000",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "OMP_NUM_THREADS": "1",
    }
    container = {
        "name": "elasticjob-worker",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*(command or _TRAIN), *args],
        "env": [
            {"name": "STORE", "value": _store_address(cluster)},
            *({"name": key, "value": value} for key, value in environment.items()),
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
    }
    pod = {"terminationGracePeriodSeconds": 30, "containers": [container]}
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 3,
            "checkpoint": {"url": f"s3://tests/{name}"},
            "replicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": pod}}},
        },
    }


# Slow enough for something to happen meanwhile, and saved often.
_TRAIN = (
    *("-m", "elastic_runtime.examples.digits", "--dir", "$(ELASTIC_CHECKPOINT)"),
    *("--every", "5 steps", "--step-ms", "100"),
)


def _installation(cluster: Cluster) -> Iterator[Object]:
    """What ``deploy/`` holds, with the image and the namespace of the tests."""
    yield from manifests("crd.yaml")
    for name in ("controller.yaml", "rbac.yaml"):
        for item in manifests(f"controller/{name}"):
            yield _at_home(cluster, item)


def _at_home(cluster: Cluster, item: Object) -> Object:
    item = copy.deepcopy(item)
    meta = item["metadata"]
    if item["kind"] == "Namespace":
        meta["name"] = cluster.home
    elif item["kind"] not in _CLUSTER_WIDE:
        meta["namespace"] = cluster.home
    for subject in item.get("subjects", ()):
        subject["namespace"] = cluster.home
    if item["kind"] == "Deployment":
        container = item["spec"]["template"]["spec"]["containers"][0]
        container |= {"image": cluster.image, "imagePullPolicy": "IfNotPresent"}
        for variable in container["env"]:
            if variable["name"] == "ELASTIC_ETCD_IMAGE":
                variable["value"] = cluster.image
    return item


def _store(cluster: Cluster) -> Iterator[Object]:
    """The namespace of the jobs, and where their checkpoints are kept."""
    code = (ROOT / "tests" / "cluster" / "small_s3.py").read_text()
    meta = {"name": "store", "namespace": cluster.namespace, "labels": {"app": "store"}}
    port = {"port": _STORE_PORT, "targetPort": _STORE_PORT}
    container = {
        "name": "store",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/code/small_s3.py", str(_STORE_PORT)],
        "readinessProbe": {"tcpSocket": {"port": _STORE_PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    volume = {"name": "code", "configMap": {"name": "store"}}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.namespace}}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"small_s3.py": code}}
    service = {"selector": {"app": "store"}, "ports": [port]}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service}
    # A Deployment tries again where a namespace is so new that it has no service account.
    pod = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "store"}},
        "template": {"metadata": {"labels": {"app": "store"}}, "spec": pod},
    }
    yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def _store_address(cluster: Cluster) -> str:
    """An address, because a cluster may have no DNS."""
    service = cluster.core.read_namespaced_service("store", cluster.namespace)
    return str(service.spec.cluster_ip)


def _has(cluster: Cluster, item: Object, condition: str) -> bool:
    conditions = ((cluster.find(item) or {}).get("status") or {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _available(cluster: Cluster) -> bool:
    pods = cluster.pods() + cluster.pods(namespace=cluster.home)
    ready = [
        any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in pod["status"].get("conditions") or ()
        )
        for pod in pods
    ]
    return len(pods) >= 2 and all(ready)
