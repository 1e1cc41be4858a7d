"""What pods are told of the place of their node, and which of them still have to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from elastic_runtime.controller.decide import manifests, node_topology
from elastic_runtime.controller.decide.decision import decide
from elastic_runtime.controller.decide.job_types import DeletePod, NoteTopology
from elastic_runtime.controller.decide.manifests import settings_mark, template_mark
from elastic_runtime.controller.decide.node_topology import unknown
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.unit.controller.jobs import container, job, template_of
from tests.unit.controller.simulated import Cluster, begun, running

LABELS = ("zone", "block", "rack")
TOPOLOGY = {"nodeLabels": list(LABELS)}
NOTE = "elastic.pytorch.org/topology"


def pod(made: Any) -> Any:
    spec = JobSpec.of(made)
    manifest = manifests.worker_pod(spec, 0, 0, "10.0.0.7:2379", (1, 4))
    kubernetes_validate.validate(manifest, "1.34", strict=True)
    return manifest


def traces(manifest: Any) -> list[bool]:
    """Whether a pod has the annotation, the variable, the volume and the mount."""
    [worker] = manifest["spec"]["containers"]
    return [
        NOTE in manifest["metadata"]["annotations"],
        any(one["name"] == "ELASTIC_NODE_TOPOLOGY_FILE" for one in worker["env"]),
        any("downwardAPI" in one for one in manifest["spec"]["volumes"]),
        any(one["name"] == node_topology.VOLUME for one in worker["volumeMounts"]),
    ]


# ---------------------------------------------------------------- the pod


def test_a_pod_finds_its_annotation_in_a_file() -> None:
    made = pod(job(topology=TOPOLOGY))
    [worker] = made["spec"]["containers"]
    assert made["metadata"]["annotations"][NOTE] == ""
    [path] = [e["value"] for e in worker["env"] if e["name"] == "ELASTIC_NODE_TOPOLOGY_FILE"]
    [mount] = [one for one in worker["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
    assert mount["readOnly"] and "subPath" not in mount
    [volume] = [one for one in made["spec"]["volumes"] if one["name"] == mount["name"]]
    [item] = volume["downwardAPI"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == path
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{NOTE}']"


def test_a_volume_of_that_name_is_the_users() -> None:
    made = job(topology=TOPOLOGY)
    template_of(made)["spec"]["volumes"] = [{"name": node_topology.VOLUME, "emptyDir": {}}]
    manifest = pod(made)
    names = [one["name"] for one in manifest["spec"]["volumes"]]
    assert len(set(names)) == len(names)
    assert any("downwardAPI" in one for one in manifest["spec"]["volumes"])


@pytest.mark.parametrize(
    "made",
    [
        job(),
        job(topology={"nodeLabels": []}),
        container(job(topology=TOPOLOGY), env=[{"name": "ELASTIC_NODE_TOPOLOGY", "value": "a/b"}]),
        container(
            job(topology=TOPOLOGY), env=[{"name": "ELASTIC_NODE_TOPOLOGY_FILE", "value": "/x"}]
        ),
    ],
    ids=["nobody asks", "none", "the template says it", "the template has a file"],
)
def test_a_pod_that_is_told_nothing_has_no_trace_of_it(made: Any) -> None:
    manifest = pod(made)
    assert [NOTE in manifest["metadata"]["annotations"], *traces(manifest)[2:]] == [False] * 3


def test_what_is_mounted_there_stays() -> None:
    mounts = [{"name": "mine", "mountPath": f"{node_topology.DIRECTORY}/"}]
    made = container(job(topology=TOPOLOGY), volumeMounts=mounts)
    template_of(made)["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
    assert traces(pod(made)) == [False] * 4


def test_an_annotation_of_the_template_is_what_is_told() -> None:
    made = job(topology=TOPOLOGY)
    template_of(made)["metadata"] = {"annotations": {NOTE: "a/b"}}
    assert pod(made)["metadata"]["annotations"][NOTE] == "a/b"


def test_no_pod_is_outdated_by_it() -> None:
    without, with_it = JobSpec.of(job()), JobSpec.of(job(topology=TOPOLOGY))
    assert template_mark(without) == template_mark(with_it)
    assert settings_mark(without) == settings_mark(with_it)


def test_the_job_has_the_last_word() -> None:
    for topology, labels in (
        (None, LABELS),
        ({"nodeLabels": []}, ()),
        ({"nodeLabels": ["rack"]}, ("rack",)),
    ):
        spec = JobSpec.of(job(topology=topology))
        assert node_topology.with_default(spec, LABELS).node_labels == labels


# ---------------------------------------------------------------- what is filled in


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("z1", "b2", "r3"), "z1/b2/r3"),
        (("z1", "", "r3"), "z1"),
        (("", "b2", "r3"), "-"),
        ((), "-"),
        (("z/1", "b 2", "r\n3"), "z_1/b_2/r_3"),
    ],
)
def test_levels_below_an_unknown_one_tell_nothing(values: tuple[str, ...], told: str) -> None:
    assert node_topology.levels(values) == told


def notes(cluster: Cluster) -> list[tuple[str, str, tuple[str, ...]]]:
    found = [one for one in cluster.decide().actions if isinstance(one, NoteTopology)]
    assert all(one.uid == cluster.pods[one.name].uid for one in found)
    return [(one.name, one.node, one.labels) for one in found]


def test_a_pod_is_told_when_it_has_a_node_and_once() -> None:
    cluster = begun(job(topology=TOPOLOGY))
    assert notes(cluster) == []
    cluster.change(0, node="n1")
    assert notes(cluster) == [("digits-worker-0", "n1", LABELS)]
    cluster.settle()
    assert notes(cluster) == []
    assert cluster.pods["digits-worker-0"].topology == "n1"


@pytest.mark.parametrize(
    "fields",
    [
        *({"deleting": True}, {"exit_code": 1}, {"attempt": 7}),
        *({"topology": "-"}, {"topology": None}, {"node": ""}),
    ],
    ids=str,
)
def test_who_needs_nothing_is_not_asked_for(fields: dict[str, Any]) -> None:
    cluster = begun(job(replicas=1, topology=TOPOLOGY))
    cluster.run().settle()
    cluster.change(0, **{"node": "n1", "topology": ""} | fields)
    assert notes(cluster) == []


def test_the_controllers_own_labels_are_asked_for() -> None:
    cluster = running(1)
    cluster.change(0, node="n1", topology="")
    for labels in (LABELS, ()):
        plan = decide(cluster.job, cluster.observed(), cluster.now, topology_labels=labels)
        found = [one.labels for one in plan.actions if isinstance(one, NoteTopology)]
        assert found == ([labels] if labels else [])


def test_that_it_is_unknown_is_told_once_and_changes_no_condition() -> None:
    cluster = begun(job(topology=TOPOLOGY))
    before = cluster.status["conditions"]
    problem = node_topology.unknown('nodes "n1" is forbidden')
    seen = replace(cluster.observed(), asides=(problem,))

    plan = decide(cluster.job, seen, cluster.now)
    assert [event.reason for event in plan.events] == ["TopologyUnknown"]
    assert "topologyLabels" in plan.events[0].message
    assert plan.status["conditions"] == before

    again = decide({**cluster.job, "status": plan.status}, seen, cluster.now)
    assert again.events == ()


def test_who_is_told_nothing_hears_of_no_trouble_with_it(cluster: Cluster) -> None:
    seen = replace(cluster.observed(), asides=(node_topology.unknown("no"),))
    assert decide(cluster.job, seen, cluster.now).events == ()


def test_a_right_that_is_lacking_is_one_problem_whatever_pod_shows_it() -> None:
    """Or there were an event for each pod that is replaced."""
    because = "User x cannot patch resource pods"
    one, other = (unknown(f'pods "digits-worker-{n}" is forbidden: {because}') for n in (0, 1))
    assert one == other
    assert because in one.message


def test_a_pod_that_is_to_go_is_told_nothing() -> None:
    cluster = running(2, topology=TOPOLOGY)
    plan = cluster.change(1, topology="").edit(replicas=1).decide()
    uid = cluster.pods["digits-worker-1"].uid
    assert [one.uid for one in plan.actions if isinstance(one, DeletePod)] == [uid]
    assert not any(isinstance(one, NoteTopology) for one in plan.actions)
