"""What becomes of pods when their template changes: it is checked, told, and rolled out.

No rollout goes on blindly, none waits for ever, and none ends a job.
"""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import (
    AgentReport,
    ApplyManifest,
    CheckPod,
    CreatePod,
    DeletePod,
    Problem,
)
from elastic_runtime.controller.decide.rollout import REFUSED, refusal
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, running

REFUSAL = Problem(REFUSED, 'unknown field "spec.containers[0].arg"', "spec.…template")


def images(cluster: Cluster) -> dict[int, str]:
    """What the pods run, by index."""
    return {index: cluster.worker(index)["image"] for index in cluster.indices}


def training(replicas: int = 3, **spec: Any) -> Cluster:
    """A job whose pods are replaced one after the other, and whose agents are in round 1."""
    cluster = running(replicas, rollout="Rolling", **spec)
    cluster.in_round(1, min(replicas, cluster.job["spec"]["maxReplicas"])).settle()
    return cluster


def rolling(replicas: int = 3, **spec: Any) -> Cluster:
    """The same, and the template has just changed."""
    cluster = training(replicas, **spec)
    cluster.change_template().settle()
    return cluster


def succeeded(cluster: Cluster, ago: float = 15.0) -> Cluster:
    """The same, and the pod that left is followed by another, which runs and is in no round."""
    left = len(cluster.indices)
    cluster.vanish().in_round(2, left).settle()
    cluster.run(ago=ago).settle()
    return cluster


def deleted(cluster: Cluster) -> list[str]:
    """The pods that the present plan deletes."""
    return [one.name for one in cluster.decide().actions if isinstance(one, DeletePod)]


def about_to_go() -> Cluster:
    """A job of three pods, the last of which is chosen to be replaced, and still there."""
    cluster = training()
    cluster.change_template().step()
    cluster.step()
    assert cluster.status["memory"]["roll"]["index"] == 2, "it is written down before it goes"
    assert (cluster.leaving, deleted(cluster)) == ([], ["digits-worker-2"])
    return cluster


# ---------------------------------------------------------------- the check


def test_a_new_job_waits_for_the_check_with_everything() -> None:
    first, *others = Cluster(job()).step().actions
    assert isinstance(first, CheckPod)
    assert first.manifest["metadata"]["name"] == "digits-worker-check"
    assert first.manifest["spec"]["containers"][0]["image"] == "img:1"
    assert any(isinstance(action, ApplyManifest) for action in others)


def test_a_template_is_checked_once(cluster: Cluster) -> None:
    assert cluster.checks == 1
    cluster.end(1, 137).settle()
    assert cluster.checks == 1
    cluster.change_template().settle()
    assert cluster.checks == 2


def test_a_template_that_was_refused_is_checked_again_and_again() -> None:
    cluster = Cluster(job())
    cluster.problems = (REFUSAL,)
    for checks in (1, 2, 3):
        cluster.step()
        assert cluster.checks == checks
    cluster.expect("Running", False, REFUSED, 'unknown field "spec.containers[0].arg"')
    cluster.problems = ()
    cluster.settle()
    assert cluster.checks == 4


def test_a_job_that_has_begun_needs_its_etcd_more_than_the_check(cluster: Cluster) -> None:
    cluster.etcd = None
    kinds = [type(action) for action in cluster.change_template().vanish(1).decide().actions]
    assert kinds == [ApplyManifest, CheckPod]  # and no pod before there is an etcd
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_a_pod_comes_after_the_check_of_its_template() -> None:
    plan = running(2).change_template().vanish(1).decide()
    assert [type(action) for action in plan.actions] == [CheckPod, CreatePod]


HANDLED = 'Pod in version "v1" cannot be handled as a Pod: '
STRICT = f"{HANDLED}strict decoding error: "
INVALID = 'Pod "digits-worker-check" is invalid: '


@pytest.mark.parametrize(
    ("said", "field", "rest"),
    [  # as Kubernetes 1.34 says it
        (
            f'{STRICT}unknown field "spec.containers[0].arg", unknown field "spec.nodeSelectr"',
            "spec.containers[0].arg",
            'unknown field "spec.containers[0].arg", unknown field "spec.nodeSelectr"',
        ),
        (
            (
                f"{HANDLED}json: cannot unmarshal number into Go struct field "
                "EnvVar.spec.containers.env.value of type string"
            ),
            "spec.containers.env.value",
            "json: cannot unmarshal number",
        ),
        (
            f'{INVALID}spec.containers[0].name: Invalid value: "A_b": a lowercase RFC 1123 label',
            "spec.containers[0].name",
            "spec.containers[0].name: Invalid value",
        ),
        (
            f"{INVALID}[spec.containers[0].env[0].name: Required value, spec.restartPolicy: no]",
            "spec.containers[0].env[0].name",
            "[spec.containers[0].env[0].name: Required value",
        ),
        (f"{HANDLED}quantities must match the regular expression", "", "quantities must match"),
    ],
)
def test_a_refusal_names_the_field_of_the_template(said: str, field: str, rest: str) -> None:
    problem = refusal(said)
    template = "spec.replicaSpecs.Worker.template"
    assert problem.field == (f"{template}.{field}" if field else template)
    assert f"a pod of this template: {rest}" in problem.message
    assert problem.reason == REFUSED


# ---------------------------------------------------------------- what is told


def test_a_change_is_told_and_pods_keep_what_they_have_until_they_are_replaced(
    cluster: Cluster,
) -> None:
    cluster.in_round(1, 2).settle()
    cluster.change_template().settle()
    assert images(cluster) == {0: "img:1", 1: "img:1"}
    assert cluster.reasons()[-1] == "TemplateChanged"
    cluster.expect("Outdated", True, "OnRecreate", "2 of 2 pods run with an older template")
    assert cluster.status["updatedReplicas"] == 0
    assert cluster.holds("Running")
    # Those that are replaced have the new one.
    cluster.end(0, 137).settle()
    cluster.run().settle()
    assert images(cluster) == {0: "img:2", 1: "img:1"}
    assert cluster.status["updatedReplicas"] == 1
    cluster.end(1, 137).settle()
    cluster.run().settle()
    cluster.expect("Outdated", False, "UpToDate")


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        ({"nprocPerNode": 2}, True),
        ({"maxRestarts": 7}, True),
        ({"checkpoint": {"url": "s3://bucket/run"}}, True),
        ({"replicas": 3, "maxReplicas": 5, "backoffLimit": 2}, False),
    ],
)
def test_what_else_a_pod_is_made_from_counts(change: dict[str, Any], outdated: bool) -> None:
    cluster = running(2)
    cluster.edit(**change).settle()
    assert bool(cluster.condition("Outdated")) is cluster.holds("Outdated") is outdated


def test_a_pod_of_an_older_controller_is_not_outdated() -> None:
    cluster = running(2, nprocPerNode=2)
    for index in (0, 1):
        cluster.change(index, settings="")
    cluster.settle()
    assert cluster.condition("Outdated") == {}


# ---------------------------------------------------------------- one after the other


def test_pods_are_replaced_one_after_the_other_and_the_next_when_all_train() -> None:
    cluster = rolling()
    for number, index in ((1, 2), (3, 1), (5, 0)):
        assert cluster.leaving == [index]
        assert cluster.holds("Outdated")
        cluster.vanish().settle()
        assert cluster.leaving == []
        cluster.run().settle()
        assert cluster.leaving == [], "what agents said before it left is not of its successor"
        cluster.in_round(number + 1, 2).settle()  # the others go on without it
        assert cluster.leaving == [], "its successor does not train yet"
        cluster.in_round(number + 2, 3).settle()
    assert images(cluster) == {0: "img:2", 1: "img:2", 2: "img:2"}
    assert not cluster.holds("Outdated")
    assert cluster.reasons().count("Rolling") == 3
    assert cluster.status["restartCount"] == 0
    assert "PodReplaced" not in cluster.reasons()
    assert cluster.leaving == []


def test_a_rollout_never_goes_below_the_minimum() -> None:
    cluster = rolling(2, minReplicas=2)
    assert cluster.leaving == []
    cluster.expect("Outdated", True, "AtMinimum")
    cluster.edit(replicas=3).settle()
    cluster.run().in_round(2, 3).settle()
    assert cluster.leaving == [1], "the third pod has the new template already"


def test_a_rollout_waits_for_a_pod_that_is_missing() -> None:
    cluster = rolling()
    cluster.vanish().in_round(2, 2).settle()
    cluster.change(2, waiting_reason="ImagePullBackOff").wait(3600).settle()
    assert cluster.leaving == []
    assert cluster.holds("Running")
    assert "ImagePullFailed" in cluster.reasons("Warning")
    cluster.change_template("img:3").settle()
    cluster.run().in_round(3, 3).settle()
    assert cluster.leaving == [1]
    assert images(cluster)[2] == "img:3"


def test_pods_without_reports_are_believed_to_train_after_a_while_if_they_are_ready() -> None:
    cluster = running(3, rollout="Rolling")
    cluster.change_template().settle()
    assert cluster.leaving == []
    cluster.change(1, ready=False).wake().settle()
    assert cluster.leaving == []
    cluster.change(1, ready=True).settle()
    assert cluster.leaving == [2]


# ---------------------------------------------------------------- a template that does not work


def test_a_pod_that_refuses_the_new_template_does_not_end_a_job_that_trains() -> None:
    cluster = rolling()
    cluster.vanish().in_round(2, 2).settle()
    waits = []
    for _ in range(4):
        cluster.run().settle()
        cluster.wait(2).end(2, 2, message="there is no script 'nosuch.py'")
        waits.append(cluster.settle_until(lambda: not cluster.pods["digits-worker-2"].ended))
    assert not cluster.ended
    assert waits == [0, 1, 2, 4]
    assert cluster.leaving == []
    assert any("there is no script" in event.message for event in cluster.events)


@pytest.mark.parametrize(
    ("policy", "code", "reason"),
    [
        ("OnFailure", 2, ""),
        ("OnFailure", 1, ""),
        ("OnFailure", 128, "StartError"),
        ("OnFailure", 127, "ContainerCannotRun"),
        ("ExitCode", 1, ""),
    ],
)
def test_a_pod_that_cannot_start_says_something_about_its_template(
    policy: str, code: int, reason: str
) -> None:
    cluster = succeeded(rolling(worker={"restartPolicy": policy}), ago=1)
    cluster.end(2, code, reason).wait(90).settle()
    assert not cluster.ended
    assert cluster.holds("Running")
    assert cluster.status["attempt"] == 0
    assert cluster.leaving == []
    words = "digits-worker-2 runs (digits-worker-2 ended: "
    cluster.expect("Outdated", True, "Rolling", words)


def test_other_settings_count_as_another_template() -> None:
    cluster = training()
    cluster.edit(nprocPerNode="gpu").settle()
    assert cluster.leaving == [2]
    cluster.vanish().settle()
    cluster.run().settle()
    cluster.end(2, 2).settle()
    assert not cluster.ended


def test_a_script_that_fails_after_a_while_fails_though_templates_differ() -> None:
    cluster = rolling()
    cluster.vanish().settle()
    cluster.run().settle()
    cluster.wait(300).end(2, 1).settle()
    assert cluster.holds("Failed")


def test_a_corrected_template_is_not_held_up_by_the_falls_of_the_last_one() -> None:
    cluster = rolling()
    cluster.vanish().in_round(2, 2).settle()
    for _ in range(6):
        cluster.run(ago=1).settle()
        cluster.end(2, 2).settle()
        cluster.wait(61).settle()
    cluster.run(ago=1).settle()
    cluster.end(2, 2)
    assert cluster.settle().wake_at > cluster.now
    cluster.change_template("img:3").settle()
    assert images(cluster)[2] == "img:3"
    assert cluster.pods["digits-worker-2"].phase == "Pending"


def test_a_pod_that_was_in_no_round_says_something_about_its_template_however_late() -> None:
    cluster = succeeded(rolling())
    cluster.wait(300)
    cluster.end(2, 1).change(2, last_report=AgentReport("6f1c-0", round=0)).settle()
    assert not cluster.ended


def test_a_pod_on_a_lost_node_trains_with_no_template(cluster: Cluster) -> None:
    cluster.change_template().settle()
    cluster.change(1, deleting=True, ready=False).settle()  # its node does not answer
    cluster.vanish(0).settle()
    cluster.run(0, ago=1).settle()
    cluster.end(0, 2).settle()
    assert cluster.condition("Failed")["reason"] == "UsageError"


# ---------------------------------------------------------------- no pod without the check


def test_what_pods_were_made_from_before_anybody_asked_is_accepted(cluster: Cluster) -> None:
    del cluster.job["status"]["memory"]["checked"]  # of an older controller
    cluster.vanish(1)
    assert not any(isinstance(one, CheckPod) for one in cluster.decide().actions)
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert cluster.status["memory"]["checked"]


def test_pods_that_wait_are_kept_while_the_template_is_refused() -> None:
    cluster = running(1)
    cluster.edit(replicas=3).settle()
    cluster.end(0, 137).wait(1)
    before = {pod.name: pod.uid for pod in cluster.pods.values()}
    cluster.change_template().problems = (REFUSAL,)
    for _ in range(4):
        cluster.step()
    for name in ("digits-worker-1", "digits-worker-2"):
        assert cluster.pods[name].uid == before[name]
    cluster.problems = ()
    cluster.settle()
    assert images(cluster) == {0: "img:2", 1: "img:2", 2: "img:2"}


def test_no_pod_goes_before_its_template_was_checked() -> None:
    cluster = training()
    plan = cluster.change_template().decide()
    assert [type(one) for one in plan.actions] == [CheckPod]
    cluster.problems = (REFUSAL,)
    for _ in range(3):
        cluster.step()
        cluster.wait(60)
    assert cluster.indices == [0, 1, 2]
    cluster.expect("Outdated", True, REFUSED)
    cluster.expect("Running", True, "EnoughPods", "unknown field")


def test_a_check_without_an_answer_is_no_answer() -> None:
    cluster = Cluster(job())
    plan = cluster.decide()
    assert isinstance(plan.actions[0], CheckPod)
    assert "checked" not in plan.status["memory"]
    cluster.checked = "of another template"
    assert isinstance(cluster.decide().actions[0], CheckPod)
    cluster.checked = plan.actions[0].mark
    assert not any(isinstance(one, CheckPod) for one in cluster.decide().actions)


# ---------------------------------------------------------------- what is forgotten


def test_a_pod_that_could_not_be_deleted_is_deleted_again() -> None:
    cluster = rolling()
    cluster.change(2, deleting=False)  # the API server did not answer
    assert deleted(cluster) == ["digits-worker-2"]


def test_agents_out_of_reach_or_without_a_round_let_no_pod_go() -> None:
    cluster = succeeded(rolling())
    cluster.report = None  # as after a restart of the controller
    for _ in range(5):
        cluster.wait(3600).settle()
        assert cluster.leaving == []
    cluster.in_round(3, 3).settle()
    assert cluster.leaving == [1]
    # Nor do those that form a round.
    cluster.vanish().settle()
    cluster.run().say(round=0, world=3, nodes=3).wait(3600).settle()
    assert cluster.leaving == []


def test_a_pod_that_ends_by_itself_before_it_goes_is_counted() -> None:
    cluster = about_to_go()
    cluster.end(2, 137).settle()
    assert cluster.reasons("Warning").count("PodReplaced") == 1
    assert "exit code 137" in cluster.status["lastFault"]


def test_a_pod_that_is_to_go_stays_when_another_is_lost() -> None:
    cluster = about_to_go()
    cluster.vanish(0).settle()
    assert cluster.leaving == []


# ---------------------------------------------------------------- never below the minimum


def test_a_rollout_counts_the_nodes_of_a_round_and_not_pods() -> None:
    cluster = running(3, rollout="Rolling", minReplicas=2)
    cluster.in_round(1, 2)  # the third has just started
    cluster.change(2, started_at=cluster.now).settle()
    cluster.change_template().settle()
    assert cluster.leaving == []
    cluster.in_round(2, 3).settle()
    assert cluster.leaving == [2]


def test_what_is_waited_for_is_said_also_with_one_pod_more_than_the_minimum() -> None:
    cluster = rolling(3, minReplicas=2)
    assert cluster.leaving == [2]
    cluster.in_round(2, 2).vanish().settle()
    cluster.expect("Outdated", True, "Rolling", "digits-worker-2 runs")


def test_a_successor_that_a_spare_has_replaced_is_given_time() -> None:
    cluster = rolling(2, minReplicas=2, maxReplicas=2, spares=1)
    assert cluster.leaving == [2]
    cluster.in_round(2, 2).vanish().settle()
    cluster.run(ago=1).settle()
    assert cluster.leaving == []
    cluster.wake().settle()
    assert cluster.leaving == [1]


# ---------------------------------------------------------------- what changes meanwhile


def test_a_rollout_goes_on_at_a_smaller_size() -> None:
    cluster = rolling()
    cluster.vanish().edit(replicas=2).settle()
    cluster.in_round(2, 2).settle()
    assert cluster.leaving == [1]


def test_a_spare_is_in_no_round_and_holds_up_none() -> None:
    cluster = running(4, rollout="Rolling", spares=1, maxReplicas=4)
    assert cluster.indices == [0, 1, 2, 3, 4]
    cluster.in_round(1, 4).settle()
    cluster.change_template().settle()
    assert cluster.leaving == [4]
    cluster.vanish().settle()
    cluster.run().settle()  # the round is the same
    assert cluster.leaving == []
    cluster.wake().settle()
    assert cluster.leaving == [3]


def test_agents_that_do_not_count_nodes_are_given_time() -> None:
    cluster = rolling()
    cluster.vanish().settle()
    cluster.run().in_round(3, 0).settle()
    assert cluster.leaving == []
    cluster.wake().settle()
    assert cluster.leaving == [1]


def test_a_pod_that_has_no_place_holds_up_no_rollout_but_a_successor_does() -> None:
    cluster = running(3, rollout="Rolling")
    cluster.edit(replicas=4).settle()
    cluster.change(3, unschedulable="0/3 nodes are available").in_round(1, 3).settle()
    cluster.change_template().settle()
    assert cluster.leaving == []
    cluster.change(3, unschedulable="0/3 nodes are available").settle()  # what replaces it, too
    assert cluster.leaving == [2]
    cluster.vanish().in_round(2, 2).settle()
    for index in (2, 3):
        cluster.change(index, unschedulable="0/3 nodes are available")
    cluster.wait(3600).settle()
    assert cluster.leaving == []
    assert "digits-worker-2 runs" in cluster.condition("Outdated")["message"]


def test_a_clock_that_is_ahead_holds_up_no_rollout() -> None:
    cluster = running(3, rollout="Rolling")
    for index in (0, 1, 2):
        cluster.change(index, started_at=cluster.now + 7200)
    cluster.change_template().settle()
    assert cluster.leaving == [2]


def test_a_rollout_that_is_called_off_forgets_the_pod_that_was_to_go() -> None:
    cluster = about_to_go()
    cluster.edit(rollout="OnRecreate").settle()
    assert ("roll" in cluster.status["memory"], cluster.leaving) == (False, [])
    cluster.end(2, 137).settle()
    assert cluster.reasons().count("PodReplaced") == 1


@pytest.mark.parametrize(
    "leave",
    [
        lambda it: it.edit(suspend=True),
        lambda it: it.end(0, 0).end(1, 0),
        lambda it: it.wait(it.job["spec"]["activeDeadlineSeconds"]),
    ],
    ids=["suspended", "ended", "too late"],
)
def test_a_job_without_pods_is_not_outdated(leave: Any) -> None:
    cluster = running(2, activeDeadlineSeconds=100, cleanPodPolicy="All")
    cluster.change_template().settle()
    assert cluster.holds("Outdated")
    leave(cluster).settle()
    cluster.vanish().settle()
    assert not cluster.holds("Outdated")
    assert (cluster.status.get("worldSize", 0), cluster.status["updatedReplicas"]) == (0, 0)


# ---------------------------------------------------------------- what somebody has written


@pytest.mark.parametrize(
    "memory",
    [
        *({"roll": {"round": 3}}, {"roll": 5}, {"slots": {"0": {}}}, {"slots": []}),
        *({"launch": [1]}, {"told": 5}, {"etcd": "x"}, [], "x"),
    ],
)
def test_a_memory_that_cannot_be_read_is_forgotten(cluster: Cluster, memory: Any) -> None:
    kept = cluster.status["memory"]
    cluster.job["status"]["memory"] = {**kept, **memory} if isinstance(memory, dict) else memory
    cluster.vanish(1).settle()
    assert cluster.indices == [0, 1]


@pytest.mark.parametrize("status", [{"attempt": "x"}, {"conditions": {}}])
def test_a_status_that_cannot_be_read_is_written_anew(status: dict[str, Any]) -> None:
    cluster = running(2)
    cluster.job["status"].update(status)
    cluster.settle()
    assert cluster.holds("Running")
