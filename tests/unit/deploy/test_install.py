"""How the controller is installed: by plain manifests, kustomize or Helm, and always the same."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import HelmError, HelmValuesError, lint

from elastic_runtime.controller.spec.topology_spec import are_node_labels
from tests.unit.deploy.files import CHART, DEPLOY, ROOT, SAMPLES, Object, identity, jobs, objects
from tests.unit.deploy.rendering import charted, kustomized, with_component

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTROLLER = [each for file in (DEPLOY / "controller").glob("*.yaml") for each in objects(file)]
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
OF_THE_CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def by_identity(manifests: list[Object]) -> dict[tuple[str, str, str], Object]:
    found = {identity(each): each for each in manifests}
    assert len(found) == len(manifests)
    return found


def the(kind: str, manifests: list[Object], name: str = "elastic-controller") -> Object:
    [found] = [each for each in manifests if identity(each)[::2] == (kind, name)]
    return found


def without_labels(manifest: Object) -> Object:
    manifest = deepcopy(manifest)
    aggregation = {
        name: value
        for name, value in manifest["metadata"].pop("labels", {}).items()
        if name.startswith("rbac.authorization.k8s.io/")
    }
    return manifest | {"aggregation": aggregation}


def without_tests(manifests: list[Object]) -> list[Object]:
    """Without what only `helm test` makes."""
    return [m for m in manifests if "helm.sh/hook" not in m["metadata"].get("annotations", {})]


# ---------------------------------------------------------------- every file


@pytest.mark.parametrize(
    "file",
    [
        *DEPLOY.glob("*.yaml"),
        *DEPLOY.glob("network-policy/*.yaml"),
        *DEPLOY.glob("samples/**/*.yaml"),
    ],
    ids=str,
)
def test_built_in_kinds_are_what_they_should_be(file: Any) -> None:
    for manifest in objects(file):
        if manifest["kind"] != "ElasticJob":
            kubernetes_validate.validate(manifest, "1.34", strict=True)


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.yaml")), ids=str)
def test_a_file_says_what_it_is_for(file: Any) -> None:
    templated = CHART / "templates" in file.parents
    assert templated or file.read_text().startswith("#") or file.name == "Chart.yaml"


def assert_restricted(pod: Object, **more: Any) -> None:
    """It may run where only restricted pods may; ``more`` is in each container's context, too."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for container in pod["containers"]:
        assert container["securityContext"] == {**least, **more}


def pods(manifest: Object) -> list[Object]:
    if manifest["kind"] == "Pod":
        return [manifest["spec"]]
    template = manifest.get("spec", {}).get("template")
    return [template["spec"]] if isinstance(template, dict) else []


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod, id=f"{file.name}")
        for file in [*DEPLOY.glob("etcd*.yaml"), *(DEPLOY / "controller").glob("*.yaml")]
        for manifest in objects(file)
        for pod in pods(manifest)
    ],
)
def test_our_pods_have_no_rights_that_they_do_not_need(pod: Object) -> None:
    assert_restricted(pod, readOnlyRootFilesystem=True)
    assert pod["securityContext"]["runAsUser"] > 0
    for container in pod["containers"]:
        assert container["resources"]["limits"]["memory"]
        assert container["readinessProbe"]
    needs_the_api = pod.get("serviceAccountName") == "elastic-controller"
    assert needs_the_api or pod["automountServiceAccountToken"] is False


def test_the_digits_run_where_only_restricted_pods_may() -> None:
    [job] = jobs(SAMPLES / "digits.yaml")
    assert_restricted(job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"])


# ---------------------------------------------------------------- the controller


def test_the_controller_is_probed_and_told_apart() -> None:
    container = container_of(CONTROLLER)
    assert container["command"] == ["python", "-m", "elastic_runtime.controller"]
    [port] = container["ports"]
    assert f"--liveness-port={port['containerPort']}" in container["args"]
    probes = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("liveness", "readiness")}
    assert probes == {
        "liveness": {"path": "/healthz", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
    }
    # The directory whose command line `apply -f` takes: the Namespace comes before what is in it.
    first = sorted((DEPLOY / "controller").glob("*.yaml"))[0]
    assert objects(first)[0]["kind"] == "Namespace"


def test_the_controller_may_do_what_it_does_and_no_more() -> None:
    rules = [rule for each in CONTROLLER for rule in each.get("rules", [])]
    granted = {item for rule in rules for values in rule.values() for item in values}
    assert "*" not in granted
    assert not granted & {"secrets", "nodes", "impersonate", "escalate", "bind"}
    roles = the("ClusterRole", CONTROLLER)["rules"]
    [jobs] = [rule for rule in roles if rule["resources"] == ["elasticjobs"]]
    assert "create" not in jobs["verbs"] and "patch" not in jobs["verbs"]


def test_the_version_is_that_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [version] = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    assert container_of(CONTROLLER)["image"] == f"elastic-runtime-controller:{version}"
    ours = {
        image
        for file in SAMPLES.rglob("*.yaml")
        for image in re.findall(r"image: (elastic-runtime\S*)", file.read_text())
    }
    assert ours == {f"elastic-runtime-worker:{version}", f"elastic-runtime-worker:{version}-cuda"}


def container_of(manifests: list[Object]) -> Object:
    """That of the controller."""
    [container] = the("Deployment", manifests)["spec"]["template"]["spec"]["containers"]
    found: Object = container
    return found


def assert_namespaced(made: list[Object], namespace: str) -> None:
    """Nothing of an installation is the cluster's, or has rights beyond its namespace."""
    assert {each["kind"] for each in made}.isdisjoint(OF_THE_CLUSTER)
    assert {each["metadata"]["namespace"] for each in made} == {namespace}
    assert "--namespace=$(POD_NAMESPACE)" in container_of(made)["args"]
    assert the("Role", made)["rules"] == the("ClusterRole", CONTROLLER)["rules"]


# ---------------------------------------------------------------- kustomize


def test_the_overlay_for_a_cluster_is_the_plain_installation() -> None:
    assert by_identity(kustomized("cluster")) == by_identity(CONTROLLER)


def test_the_overlay_for_a_namespace_needs_no_rights_in_the_cluster() -> None:
    made = kustomized("namespaced")
    for each in made:
        kubernetes_validate.validate(each, "1.34", strict=True)
    assert_namespaced(made, "elastic-job")


# What the controller may do beyond the rest when it tells pods the labels of their nodes.
OF_TOPOLOGY = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]


def labels_of_nodes(manifests: list[Object]) -> list[str]:
    """What an installation sets the controller to, by its environment."""
    environment = container_of(manifests)["env"]
    return [e["value"] for e in environment if e["name"] == "ELASTIC_TOPOLOGY_LABELS"]


def test_the_component_for_topology_adds_labels_and_the_rights_for_them(tmp_path: Path) -> None:
    made = with_component("cluster", "topology", tmp_path)
    for each in made:
        kubernetes_validate.validate(each, "1.34", strict=True)
    [labels] = labels_of_nodes(made)
    assert are_node_labels(labels.split(","))
    assert labels_of_nodes(kustomized("cluster")) == []
    rules = the("ClusterRole", CONTROLLER)["rules"]
    assert the("ClusterRole", made)["rules"] == rules + OF_TOPOLOGY


def test_each_file_of_a_kustomization_is_there() -> None:
    files = [*DEPLOY.rglob("kustomization.yaml"), *DEPLOY.rglob("Kustomization")]
    assert len(files) == 7
    for file in files:
        for resource in yaml.safe_load(file.read_text()).get("resources", []):
            assert (file.parent / resource).exists(), (file, resource)


# ---------------------------------------------------------------- Helm


def test_the_chart_is_the_plain_installation() -> None:
    plain = [each for each in CONTROLLER if each["kind"] != "Namespace"]
    made, wanted = (
        {name: without_labels(each) for name, each in by_identity(manifests).items()}
        for manifests in (without_tests(charted()), plain)
    )
    assert made == wanted
    assert (CHART / "crds" / "crd.yaml").read_text() == (DEPLOY / "crd.yaml").read_text()


def test_the_chart_for_a_namespace() -> None:
    assert_namespaced(charted("team", namespaced=True), "team")


def test_the_chart_adds_labels_of_nodes_and_the_rights_for_them() -> None:
    made = charted(topologyLabels=["example.com/zone", "rack"])
    assert labels_of_nodes(made) == ["example.com/zone,rack"]
    rules = the("ClusterRole", CONTROLLER)["rules"]
    assert the("ClusterRole", made)["rules"] == rules + OF_TOPOLOGY
    assert labels_of_nodes(charted()) == []


def test_the_chart_for_a_namespace_cannot_read_nodes() -> None:
    with pytest.raises(HelmError, match="nodes are the cluster's"):
        charted("team", namespaced=True, topologyLabels=["rack"])


def test_two_releases_do_not_share_what_belongs_to_the_cluster() -> None:
    here, there = (charted(name, userRoles=False) for name in ("one", "two"))
    shared = set(by_identity(here)) & set(by_identity(there))
    assert shared == set()
    binding = the("ClusterRoleBinding", there, "elastic-controller-two")
    assert binding["roleRef"]["name"] == "elastic-controller-two"
    assert binding["subjects"][0]["namespace"] == "two"


# Each value as it is not by default, but for two.
EVERYTHING: Object = {
    "image": {"repository": "registry.example/controller", "tag": "x", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 2,
    "podDisruptionBudget": {"enabled": False},
    "namespaced": False,
    "userRoles": False,
    "policyNamespaces": ["one", "two"],
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "apiServerPorts": [8443],
    },
    "etcdImage": "registry.example/etcd:1",
    "topologyLabels": ["example.com/zone", "rack"],
    "port": 9000,
    "metrics": {
        name: {"enabled": True, "namespace": "seen", "labels": {"a": "b"}, **more}
        for name, more in {
            "serviceMonitor": {"interval": "10s"},
            "podMonitor": {"interval": "1m30s", "jobNamespaces": ["one"]},
            "rules": {"patience": "1h", "runbooks": "https://example.org/runbooks"},
        }.items()
    },
    "extraArgs": ["--verbose"],
    "extraEnv": [{"name": "A", "value": "b"}],
    "serviceAccount": {"create": True, "name": "other", "annotations": {"a": "b"}},
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "podLabels": {"team": "vision"},
    "podAnnotations": {"prometheus.io/scrape": "false", "prometheus.io/port": "9000"},
    "priorityClassName": "high",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


def validate(manifest: Object) -> None:
    """As Kubernetes does; of the Prometheus Operator's kinds no definition is at hand."""
    if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
        kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_everything_at_once_is_valid() -> None:
    for each in charted(**EVERYTHING):
        validate(each)


def leaves(values: Any, *place: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value that is no object with values of its own, and where it is."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, *place, name)
    else:
        yield place, values


@pytest.mark.parametrize(
    ("place", "default"),
    [pytest.param(place, default, id=".".join(place)) for place, default in leaves(VALUES)],
)
def test_each_value_of_the_chart_has_an_effect(place: tuple[str, ...], default: Any) -> None:
    values = deepcopy(EVERYTHING)
    if place == ("namespaced",):
        values["topologyLabels"] = []  # which needs rights in the cluster
    before = charted(**values)
    *parents, name = place
    part = values
    for parent in parents:
        part = part[parent]
    part[name] = not default if part[name] == default else default
    made = charted(**values)
    changed = [each for each in made if each not in before]
    assert changed or len(made) < len(before)
    for each in changed:
        validate(each)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 1}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"tags": "x"}}, "tags"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"port": 80}, "port"),
        ({"topologyLabels": "rack"}, "topologyLabels"),
        ({"topologyLabels": ["a/b/c"]}, "topologyLabels"),
        ({"topologyLabels": ["rack"] * 9}, "topologyLabels"),
        ({"podAnnotations": {"a": 1}}, "podAnnotations"),
        ({"podDisruptionBudget": {"minAvailable": 1}}, "minAvailable"),
        ({"networkPolicy": {"metricsFrom": [{"pods": {}}]}}, "pods"),
        ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts"),
        ({"metrics": {"serviceMonitors": {}}}, "serviceMonitors"),
        ({"metrics": {"podMonitor": {"interval": "often"}}}, "interval"),
        ({"topologySpreadConstraints": [{}]}, "maxSkew"),
    ],
)
def test_the_chart_refuses_what_it_does_not_know(values: Object, said: str) -> None:
    with pytest.raises(HelmValuesError, match=said):
        charted(**values)


def test_the_defaults_fit_their_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


def objects_of(schema: Object, path: str = "") -> list[tuple[str, Object]]:
    """All parts of a schema that are objects with known fields, by their places."""
    parts = schema.get("properties", {})
    own = [(path, schema)] if parts else []
    return own + [
        found for name, part in parts.items() for found in objects_of(part, f"{path}.{name}")
    ]


def test_the_schema_knows_each_value_and_no_other() -> None:
    for place, schema in objects_of(SCHEMA):
        assert schema["additionalProperties"] is False, place
        values = VALUES
        for name in place.split(".")[1:]:
            values = values[name]
        if place != ".resources":
            assert schema["properties"].keys() - {"global"} == values.keys(), place


def test_helm_has_nothing_to_say_about_the_chart() -> None:
    report = lint(CHART, strict=True)
    said = [each for each in report["messages"] if "icon is recommended" not in each["error"]]
    assert (report["errors"], said) == ([], [])
