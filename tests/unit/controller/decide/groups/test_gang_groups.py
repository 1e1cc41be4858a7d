"""PodGroups, as each scheduler's definition allows them, and the pods that name them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from elastic_runtime.controller.decide.groups.gang_groups import gang_name, pod_group
from elastic_runtime.controller.decide.job_types import ApplyPodGroup, CreatePod
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.kube.pod_groups import COSCHEDULING, KAI, NATIVE, SCHEMAS, VOLCANO
from tests.unit.controller.jobs import job, template_of
from tests.unit.controller.simulated import Cluster, begun, running

KINDS = {"coscheduling": COSCHEDULING, "volcano": VOLCANO, "kai": KAI, "native": NATIVE}


def gang(name: str, **spec: Any) -> Any:
    queue = {"queue": "team"} if name in ("volcano", "kai") else {}
    return job(replicas=3, minReplicas=2, scheduling={"gang": name, **queue}, **spec)


def pods(cluster: Cluster) -> list[Any]:
    return [cluster.manifests[name] for name in sorted(cluster.manifests)]


@pytest.mark.parametrize("name", KINDS)
def test_a_group_is_what_its_definition_allows(name: str) -> None:
    spec = JobSpec.of(gang(name, priorityClassName="high"))
    made = pod_group(spec, name, 2, {"name": "digits"})
    jsonschema.validate(made["spec"], SCHEMAS[KINDS[name]])
    if name == "native":
        assert made["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}}
    else:
        assert made["spec"]["minMember"] == 2
    if name in ("volcano", "kai"):
        assert (made["spec"]["queue"], made["spec"]["priorityClassName"]) == ("team", "high")


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [
        ("coscheduling", "scheduler-plugins-scheduler"),
        ("volcano", "volcano"),
        ("kai", "kai-scheduler"),
        ("native", None),
    ],
)
def test_pods_are_placed_by_that_scheduler_unless_the_template_names_one(
    name: str, scheduler: str | None
) -> None:
    cluster = begun(gang(name))
    assert {pod["spec"].get("schedulerName") for pod in pods(cluster)} == {scheduler}

    asked = gang(name)
    template_of(asked)["spec"]["schedulerName"] = "mine"
    cluster = begun(asked)
    assert {pod["spec"]["schedulerName"] for pod in pods(cluster)} == {"mine"}


def test_pods_of_native_gangs_name_the_group() -> None:
    cluster = begun(gang("native"))
    named = gang_name(JobSpec.of(cluster.job), 2)
    assert cluster.gangs == {("native", named)}
    assert [pod["spec"]["schedulingGroup"] for pod in pods(cluster)] == [
        {"podGroupName": named}
    ] * 3


def test_what_else_schedulers_are_told_of_pods() -> None:
    """Volcano may take those beyond the minimum, and KAI is to make no group of its own."""
    notes = [pod["metadata"]["annotations"] for pod in pods(begun(gang("volcano")))]
    assert [note.get("volcano.sh/preemptable") for note in notes] == [None, None, "true"]
    for pod in pods(begun(gang("kai"))):
        assert pod["metadata"]["annotations"]["kai.scheduler/skip-podgrouper"] == "true"
        assert pod["metadata"]["labels"]["kai.scheduler/queue"] == "team"


def test_the_group_is_written_down_then_made_and_then_its_pods() -> None:
    cluster = Cluster(gang("coscheduling"))
    while not any(isinstance(one, ApplyPodGroup) for one in cluster.last.actions):
        assert not cluster.pods
        noted = (cluster.status.get("memory") or {}).get("gang")
        cluster.step()
    kinds = [type(one) for one in cluster.last.actions]
    assert kinds.index(ApplyPodGroup) < kinds.index(CreatePod)
    assert noted, "a status that is not written must not leave a group behind"


def test_another_minimum_or_scheduler_is_another_group() -> None:
    cluster = running(3, minReplicas=2, scheduling={"gang": "coscheduling"})
    (before,) = cluster.gangs
    cluster.edit(suspend=True).settle()
    cluster.vanish().settle()
    assert cluster.gangs == set()
    cluster.edit(suspend=False, minReplicas=1).settle()
    (after,) = cluster.gangs
    assert after != before


@pytest.mark.parametrize("after", ["volcano", None])
def test_while_pods_are_there_new_ones_join_their_group(after: str | None) -> None:
    """In another one they would be alone, and wait for a minimum that never comes."""
    cluster = running(3, minReplicas=2, scheduling={"gang": "coscheduling"})
    before = set(cluster.gangs)
    cluster.edit(scheduling={"gang": after} if after else {})
    cluster.delete(1).vanish().settle()
    assert cluster.gangs == before
    named = cluster.manifests["digits-worker-1"]["metadata"]["labels"]
    assert named["scheduling.x-k8s.io/pod-group"] in {name for _, name in before}

    cluster.edit(suspend=True).settle()
    cluster.vanish().edit(suspend=False).settle()
    assert [kind for kind, _ in cluster.gangs] == ([after] if after else [])


def test_who_is_added_to_a_job_without_a_gang_is_in_none() -> None:
    cluster = running(2)
    assert "gang" not in cluster.status["memory"]
    cluster.edit(scheduling={"gang": "coscheduling"}, replicas=3).settle()
    assert cluster.gangs == set()
    labels = cluster.manifests["digits-worker-2"]["metadata"]["labels"]
    assert "scheduling.x-k8s.io/pod-group" not in labels
