"""Gangs: the PodGroup of a job, in clusters that have it and in one that has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import wait_until_running
from tests.kube import pod_groups
from tests.kube.kinds import JOB

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.kinds import Kind

_GANGS = [
    ("coscheduling", pod_groups.COSCHEDULING, {"minMember": 2}),
    ("volcano", pod_groups.VOLCANO, {"minMember": 2, "queue": "team"}),
    ("kai", pod_groups.KAI, {"minMember": 2, "queue": "team"}),
    ("kai", pod_groups.KAI_BEFORE, {"minMember": 2, "queue": "team"}),
]


def _scheduling(gang: str) -> dict[str, str]:
    return {"gang": gang, **({"queue": "team"} if gang in ("volcano", "kai") else {})}


@pytest.mark.parametrize(("gang", "kind", "spec"), _GANGS, ids=[k.group for _, k, _ in _GANGS])
def test_the_minimum_of_a_job_is_a_gang_as_long_as_a_pod_needs_it(
    cluster: Scene, gang: str, kind: Kind, spec: dict[str, Any]
) -> None:
    cluster.server.catalogue.kinds.append(kind)
    cluster.store.webhooks.append(pod_groups.check_pod_group)
    job = cluster.submit(replicas=3, minReplicas=2, scheduling=_scheduling(gang))
    cluster.wait_for(lambda: len(cluster.pods("digits")) == 3, "its pods")

    (group,) = cluster.store.list(kind)
    assert group["spec"] == spec
    (owner,) = group["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    for pod in cluster.pods("digits").values():
        labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        named = {
            "coscheduling": labels.get("scheduling.x-k8s.io/pod-group"),
            "volcano": notes.get("scheduling.k8s.io/group-name"),
            "kai": notes.get("pod-group-name"),
        }
        assert named[gang] == group["metadata"]["name"]
        assert [name for name, value in named.items() if value] == [gang]

    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    cluster.wait_for(lambda: not cluster.store.list(kind), "it goes")


@pytest.mark.parametrize(
    ("gang", "words"),
    [
        ("volcano", ("this cluster has no PodGroups of volcano", "scheduling.volcano.sh/v1beta1")),
        ("native", ("Kubernetes' own PodGroups are not known here",)),  # the fake one is a 1.34
    ],
)
def test_a_cluster_without_such_groups_is_told_and_not_asked_for_them(
    cluster: Scene, gang: str, words: tuple[str, ...]
) -> None:
    cluster.submit(replicas=2, minReplicas=2, scheduling={"gang": gang})
    said = cluster.await_condition("digits", "Running", "NoGangScheduler")["message"]
    assert f"spec.scheduling.gang: {words[0]}" in said
    assert all(text in said for text in words)
    assert not cluster.pods("digits")

    asked = cluster.counts()
    cluster.edit(JOB, "digits", {"spec": {"scheduling": None}})
    wait_until_running(cluster, "digits", 2)
    assert not [name for name in cluster.counts() - asked if "podgroups" in name]
