"""What becomes of pods when their template changes: it is checked, told, and rolled out."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import ApplyManifest, CheckPod, CreatePod
from elastic_runtime.controller.decide.rollout import REFUSED, refusal
from tests.unit.controller.decide.rollouts import REFUSAL, images, rolling
from tests.unit.controller.jobs import job
from tests.unit.controller.simulated import Cluster, running

# ---------------------------------------------------------------- the check


def test_a_new_job_waits_for_the_check_with_everything() -> None:
    first, *others = Cluster(job()).step().actions
    assert isinstance(first, CheckPod)
    assert first.manifest["metadata"]["name"] == "digits-worker-check"
    assert first.manifest["spec"]["containers"][0]["image"] == "img:1"
    assert any(isinstance(action, ApplyManifest) for action in others)


def test_a_template_is_checked_once() -> None:
    cluster = running(2)
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


def test_a_job_that_has_begun_needs_its_etcd_more_than_the_check() -> None:
    cluster = running(2)
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


def test_a_change_is_told_and_pods_keep_what_they_have() -> None:
    cluster = running(2)
    cluster.in_round(1, 2).settle()
    cluster.change_template().settle()
    assert images(cluster) == {0: "img:1", 1: "img:1"}
    assert cluster.reasons()[-1] == "TemplateChanged"
    cluster.expect("Outdated", True, "OnRecreate", "2 of 2 pods run with an older template")
    assert cluster.status["updatedReplicas"] == 0
    assert cluster.holds("Running")


def test_pods_that_are_replaced_have_the_new_template() -> None:
    cluster = running(2)
    cluster.change_template().settle()
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
        cluster.in_round(number + 1, 2)  # the others go on without it
        cluster.vanish().settle()
        assert cluster.leaving == []
        cluster.run().settle()
        assert cluster.leaving == [], "its successor does not train yet"
        cluster.in_round(number + 2, 3).settle()
    assert images(cluster) == {0: "img:2", 1: "img:2", 2: "img:2"}
    assert not cluster.holds("Outdated")
    assert cluster.reasons().count("Rolling") == 3
    assert cluster.status["restartCount"] == 0
    assert "PodReplaced" not in cluster.reasons()
    assert cluster.leaving == []


def test_what_agents_said_before_a_pod_left_is_not_taken_for_its_successor() -> None:
    cluster = rolling()
    cluster.vanish().settle()
    cluster.run().settle()  # the report is still that of round 1, with three nodes
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


def test_pods_without_reports_are_believed_to_train_after_a_while() -> None:
    cluster = running(3, rollout="Rolling")
    cluster.change_template().settle()
    assert cluster.leaving == []
    cluster.wake().settle()
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
