"""What is done about a job, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.model import (
    Apply,
    CreatePod,
    DeleteJob,
    EtcdView,
    PodView,
    Problem,
    Report,
)
from elastic_runtime.controller.pods import pause
from elastic_runtime.controller.status import moment
from tests.unit.controller.jobs import CLASSIC, UID, job
from tests.unit.controller.simulated import BEGINNING, Cluster


def running(replicas: int = 2, **spec: Any) -> Cluster:
    """A job whose pods run."""
    cluster = Cluster(job(replicas=replicas, **spec))
    cluster.settle()
    cluster.run()
    cluster.settle()
    assert cluster.holds("Running")
    return cluster


# ---------------------------------------------------------------- the beginning


def test_a_new_job_gets_its_store_first_and_then_all_its_pods() -> None:
    cluster = Cluster(job(replicas=3), address="")
    first = cluster.step()
    made = {(each.kind, each.name) for each in first.actions if isinstance(each, Apply)}
    assert made == {
        ("Service", "digits"),
        ("Service", "digits-etcd"),
        ("Pod", "digits-etcd"),
        ("PodDisruptionBudget", "digits"),
    }
    cluster.settle()
    assert not cluster.pods  # nobody knows where to meet
    assert cluster.condition("Running")["reason"] == "WaitingForEtcd"
    cluster.services["digits-etcd"] = "10.0.0.9"
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [0, 1, 2]
    args = cluster.manifests["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert "--rdzv_endpoint=10.0.0.9:2379" in args


def test_a_classic_job_brings_its_own_store() -> None:
    cluster = Cluster(CLASSIC)
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert cluster.etcd is None
    assert list(cluster.services) == ["imagenet"]


def test_created_and_start_time_are_set() -> None:
    cluster = Cluster(job())
    cluster.step()
    assert cluster.holds("Created")
    assert moment(cluster.status["startTime"]) == BEGINNING
    assert cluster.status["observedGeneration"] == 1
    assert cluster.condition("Created")["observedGeneration"] == 1
    assert cluster.status["selector"] == "job-name=digits,replica-type=worker"
    assert cluster.status["restartCount"] == 0
    assert "Accepted" in cluster.reasons()


def test_replicas_that_are_left_out_are_the_minimum() -> None:
    cluster = Cluster(job(replicas=None, minReplicas=2))
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_nothing_waits_for_pods_above_the_minimum() -> None:
    cluster = Cluster(job(replicas=4, minReplicas=2))
    cluster.settle()
    cluster.run(0)
    cluster.settle()
    assert not cluster.holds("Running")
    assert "1 of 4 pods run, 2 are needed" in cluster.condition("Running")["message"]
    cluster.run(1)
    cluster.change(3, unschedulable="0/3 nodes are available")
    cluster.settle()
    assert cluster.holds("Running")
    assert cluster.indices == [0, 1, 2, 3]  # the others join later
    assert not cluster.reasons("Warning")
    worker = cluster.status["replicaStatuses"]["Worker"]
    assert worker == {"active": 4, "ready": 2, "pending": 2, "succeeded": 0, "failed": 0}


def test_running_is_what_agents_say_where_they_say_it() -> None:
    cluster = running()
    other = Cluster(job())
    other.settle()
    other.run()
    other.report = Report(f"{UID}-0", restarts={})
    other.settle()
    assert other.condition("Running")["reason"] == "Rendezvous"
    other.report = Report(f"{UID}-0", round=1, world=4, step=7, checkpoint_step=5, ready=True)
    other.settle()
    assert other.holds("Running")
    assert [other.status[name] for name in ("round", "worldSize", "step")] == [1, 4, 7]
    assert other.status["lastCheckpointStep"] == 5
    other.report = Report(f"{UID}-0")
    other.settle()
    assert not other.holds("Running")  # an agent that has just begun again
    assert (other.status["round"], other.status["worldSize"]) == (1, 4)
    assert "round" not in cluster.status


def test_steps_are_not_written_each_time() -> None:
    cluster = running()
    cluster.report = Report(round=1, world=2, step=1, ready=True)
    cluster.settle()
    cluster.report = Report(round=1, world=2, step=2, ready=True)
    cluster.now += 5
    assert cluster.settle().status["step"] == 1
    cluster.now += 30
    assert cluster.settle().status["step"] == 2


# ---------------------------------------------------------------- pods that end


@pytest.mark.parametrize(
    ("code", "reason"),
    [(137, "OOMKilled"), (143, ""), (None, "Evicted"), (5, ""), (None, "NodeLost")],
)
def test_a_pod_that_was_taken_away_is_replaced_at_once(code: int | None, reason: str) -> None:
    cluster = running(3)
    before = cluster.pods["digits-worker-1"].uid
    cluster.now += 60
    cluster.end(1, code, reason)
    cluster.settle()
    assert cluster.indices == [0, 1, 2]
    assert cluster.pods["digits-worker-1"].uid != before
    assert cluster.status["attempt"] == 0
    assert not cluster.ended


def test_restarting_is_seen_until_the_pods_run_again() -> None:
    cluster = running()
    cluster.now += 60
    cluster.end(1, 137)
    cluster.settle()
    assert cluster.holds("Restarting")
    assert "digits-worker-1 ended: exit code 137" in cluster.condition("Restarting")["message"]
    assert cluster.holds("Running")  # the other one goes on
    cluster.now += 5
    cluster.settle()
    assert cluster.holds("Restarting")
    cluster.run()
    cluster.settle()
    assert cluster.condition("Restarting")["status"] == "False"
    assert cluster.reasons().count("PodReplaced") == 1


def test_a_job_below_its_minimum_does_not_say_that_it_runs() -> None:
    cluster = running(2, minReplicas=2)
    cluster.vanish(0)
    cluster.settle()
    assert not cluster.holds("Running")
    assert cluster.holds("Restarting")
    assert cluster.indices == [0, 1]


def test_a_deleted_pod_is_followed_when_its_name_is_free() -> None:
    cluster = running()
    cluster.delete(1)
    cluster.settle()
    assert cluster.indices == [0]
    cluster.vanish()
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [1]


def test_pods_that_fall_again_and_again_wait_longer_and_longer() -> None:
    cluster = running()
    waits = []
    for _ in range(5):
        cluster.end(1, 137)
        fallen = cluster.now
        plan = cluster.settle()
        while 1 not in {pod.index for pod in cluster.pods.values() if not pod.ended}:
            cluster.now = plan.wake_at
            plan = cluster.settle()
        waits.append(cluster.now - fallen)
        cluster.run()
        cluster.settle()
    assert waits == [0, 1, 2, 4, 8]
    cluster.now += 60  # a long life
    cluster.end(1, 137)
    cluster.settle()
    assert cluster.pods["digits-worker-1"].phase == "Pending"
    assert [pause(n) for n in (1, 2, 7, 8, 9999)] == [0, 1, 32, 60, 60]


def test_a_fallen_pod_is_counted_once_however_often_it_is_looked_at() -> None:
    cluster = running(1)
    for _ in range(2):
        cluster.end(0, 137)
        cluster.settle()
        cluster.now += 1
        cluster.settle()
        cluster.run()
        cluster.settle()
    assert cluster.status["restarts"]["lost"] == 2
    assert cluster.status["restartCount"] == 2


def test_agents_count_what_they_live_through() -> None:
    cluster = running(2)
    cluster.report = Report(round=3, world=2, restarts={"killed": 2, "planned": 1}, ready=True)
    cluster.settle()
    cluster.report = Report(round=4, world=2, restarts={"killed": 2, "lost": 1}, ready=True)
    cluster.settle()  # it shrank: another life of the job, with a fresh budget
    assert cluster.status["restarts"] == {"failed": 0, "killed": 4, "lost": 1, "planned": 1}
    assert cluster.status["restartCount"] == 5
    cluster.end(1, 137)
    cluster.settle()
    assert cluster.status["restartCount"] == 5  # the other agent will say so
    cluster.run()
    cluster.settle()
    cluster.report = Report(run_id="another-0", round=9, world=9, restarts={"killed": 99})
    cluster.settle()
    assert (cluster.status["round"], cluster.status["restartCount"]) == (4, 5)


# ---------------------------------------------------------------- failures


def test_a_failure_of_the_script_ends_the_job_with_the_reason() -> None:
    cluster = running(3)
    cluster.end(1, 1)
    cluster.end(2, 1)
    cluster.settle()
    failed = cluster.condition("Failed")
    assert failed["reason"] == "PodFailed"
    assert "digits-worker-1 ended: exit code 1" in failed["message"]
    assert moment(cluster.status["completionTime"]) == cluster.now
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning") == ["PodFailed"]


def test_exit_1_under_exit_code_ends_the_job() -> None:
    cluster = Cluster(CLASSIC)
    cluster.settle()
    cluster.run()
    cluster.settle()
    cluster.end(0, 1)
    cluster.settle()
    assert cluster.holds("Failed")


def test_the_end_is_written_before_anything_follows_from_it() -> None:
    cluster = running(2)
    cluster.end(0, 1)
    plan = cluster.step()
    assert not plan.actions
    assert plan.wake_at <= cluster.now
    assert cluster.holds("Failed")


def test_the_whole_job_is_tried_again_under_another_run_id() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.now += 60
    cluster.end(0, 1)
    cluster.end(1, 1)
    cluster.settle()
    assert cluster.status["attempt"] == 1
    assert cluster.holds("Restarting")
    assert not cluster.holds("Running")
    assert cluster.status["restarts"]["failed"] == 1  # two pods, one failure
    assert {pod.attempt for pod in cluster.pods.values()} == {1}
    args = cluster.manifests["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert f"--rdzv_id={UID}-1" in args
    cluster.run()
    cluster.settle()
    assert cluster.holds("Running")
    assert not cluster.holds("Restarting")
    cluster.end(1, 1)
    cluster.settle()
    assert cluster.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert "backoffLimit 1 is used up" in cluster.condition("Failed")["message"]


def test_the_next_attempt_waits_for_pods_of_the_last_one() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.now += 60
    cluster.end(0, 1)
    cluster.settle()
    assert cluster.indices == []  # the other one is saving, perhaps
    cluster.vanish()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_attempts_that_fall_at_once_wait_longer_and_longer() -> None:
    cluster = running(1, backoffLimit=4)
    waits = []
    for _ in range(4):
        cluster.end(0, 1)
        fallen = cluster.now
        plan = cluster.settle()
        while not cluster.indices:
            cluster.now = plan.wake_at
            plan = cluster.settle()
        waits.append(cluster.now - fallen)
        cluster.run()
        cluster.settle()
    assert waits == [0, 1, 2, 4]


def test_an_attempt_does_not_pay_for_the_falls_of_the_last_one() -> None:
    cluster = running(2, backoffLimit=1)
    for _ in range(3):
        cluster.now += 20
        cluster.end(1, 137)
        cluster.settle()
        cluster.now += 2
        cluster.settle()
        cluster.run()
    cluster.end(1, 137)
    cluster.settle()
    assert 1 not in {pod.index for pod in cluster.pods.values() if not pod.ended}
    cluster.end(0, 1)
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_a_usage_error_ends_the_job_whatever_the_limits_say() -> None:
    cluster = running(2, backoffLimit=9)
    cluster.end(0, 2)
    cluster.settle()
    assert cluster.condition("Failed")["reason"] == "UsageError"


def test_pods_that_may_fail_are_left_as_long_as_enough_are_there() -> None:
    rule = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}
    cluster = running(3, minReplicas=2, failurePolicy={"rules": [rule]})
    cluster.end(2, 42)
    cluster.settle()
    assert cluster.holds("Running")
    assert cluster.pods["digits-worker-2"].phase == "Failed"
    cluster.end(1, 42)
    cluster.settle()
    assert cluster.condition("Failed")["reason"] == "TooFewPods"


# ---------------------------------------------------------------- success


def test_the_job_has_succeeded_when_no_pod_runs_any_more() -> None:
    cluster = running(3)
    cluster.end(0, 0)
    cluster.settle()
    assert not cluster.ended
    cluster.vanish(1)
    cluster.settle()
    assert cluster.indices == [0, 2]  # nothing is created any more
    cluster.end(2, 0)
    cluster.settle()
    assert cluster.holds("Succeeded")
    assert cluster.reasons()[-1] == "Succeeded"


def test_a_failure_beside_a_success_is_a_failure() -> None:
    cluster = running(2)
    cluster.end(0, 0)
    cluster.end(1, 1)
    cluster.settle()
    assert cluster.holds("Failed")


def test_a_failure_beside_a_success_is_tried_again_where_that_is_allowed() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.end(0, 0)
    cluster.settle()
    cluster.end(1, 1)
    cluster.settle()
    assert cluster.indices == [0, 1]
    cluster.run()
    cluster.settle()
    assert cluster.holds("Running")


def test_a_sidecar_does_not_keep_the_job_from_its_end() -> None:
    cluster = running(1)
    cluster.change(0, exit_code=0, finished_at=cluster.now)  # the pod's phase is still Running
    cluster.settle()
    assert cluster.holds("Succeeded")


# ---------------------------------------------------------------- size


def test_a_larger_size_is_one_operation() -> None:
    cluster = running(1)
    cluster.edit(replicas=3)
    plan = cluster.step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [1, 2]
    assert [event.message for event in plan.events] == ["from 1 to 3 pods"]
    assert cluster.status["observedGeneration"] == 2
    assert not cluster.holds("Restarting")


def test_a_smaller_size_ends_the_highest_pods_at_once() -> None:
    cluster = running(4)
    cluster.edit(replicas=2)
    plan = cluster.step()
    assert [each.name for each in plan.actions] == ["digits-worker-3", "digits-worker-2"]
    assert all(each.grace is None for each in plan.actions)  # what the pod says itself
    cluster.settle()
    assert cluster.indices == [0, 1]
    assert not cluster.holds("Restarting")


@pytest.mark.parametrize("before", [1, 2])
def test_pods_that_run_are_kept_until_enough_run_below_them(before: int) -> None:
    cluster = running(4, minReplicas=before)
    cluster.vanish(0)
    cluster.edit(replicas=2, minReplicas=2)
    cluster.settle()
    assert cluster.indices == [0, 1, 2]
    cluster.run()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_a_size_that_comes_back_waits_for_the_name() -> None:
    cluster = running(2)
    cluster.edit(replicas=1)
    cluster.settle()
    cluster.edit(replicas=2)
    cluster.settle()
    assert [pod.deleting for pod in cluster.pods.values()] == [False, True]
    assert not cluster.holds("Restarting")  # as it was asked to
    assert "PodReplaced" not in cluster.reasons()
    cluster.vanish()
    cluster.settle()
    assert cluster.indices == [0, 1]


@pytest.mark.parametrize(("replicas", "pods"), [(4, 6), (3, 3)])
def test_spares_are_kept_beyond_the_maximum(replicas: int, pods: int) -> None:
    assert len(running(replicas, spares=2).indices) == pods


def test_bounds_that_change_hold_when_no_pod_of_the_old_ones_is_left() -> None:
    cluster = running(2)
    cluster.edit(maxReplicas=6, replicas=3)
    cluster.settle()
    args = cluster.manifests["digits-worker-2"]["spec"]["containers"][0]["args"]
    assert "--nnodes=1:4" in args
    assert "BoundsKept" in cluster.reasons()
    for suspend in (True, False):
        cluster.edit(suspend=suspend)
        cluster.settle()
        cluster.vanish()
        cluster.settle()
    args = cluster.manifests["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert "--nnodes=1:6" in args


def test_pods_go_on_with_the_minimum_that_they_were_launched_with() -> None:
    cluster = running(3)
    cluster.edit(minReplicas=3)
    cluster.vanish(2)
    cluster.settle()
    assert cluster.holds("Running")  # the agents train with two
    other = running(3, minReplicas=3)
    other.edit(minReplicas=1, replicas=1)
    other.settle()
    assert other.indices == [0, 1, 2]  # with fewer they would wait for ever


def test_the_disruption_budget_follows_the_minimum() -> None:
    cluster = running(3)
    cluster.edit(minReplicas=2)
    cluster.settle()
    assert cluster.pdb == 2


# ---------------------------------------------------------------- suspend and resume


def test_suspending_drains_to_nothing_and_resuming_goes_on() -> None:
    cluster = running(2)
    cluster.edit(suspend=True)
    cluster.settle()
    assert not cluster.holds("Suspended")  # they are saving
    assert cluster.condition("Running")["reason"] == "Suspending"
    assert cluster.etcd
    cluster.vanish()
    cluster.settle()
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert cluster.etcd is None
    assert cluster.pdb is None
    cluster.now += 100
    cluster.edit(suspend=False)
    cluster.settle()
    assert not cluster.holds("Suspended")
    assert cluster.indices == [0, 1]
    assert cluster.status["attempt"] == 0
    assert moment(cluster.status["startTime"]) == cluster.now
    assert not cluster.holds("Restarting")
    assert [reason for reason in cluster.reasons() if reason in ("Suspended", "Resumed")] == [
        "Suspended",
        "Resumed",
    ]


def test_resuming_before_the_last_pod_is_gone_restarts_nothing() -> None:
    cluster = running(1)
    for suspend in (True, False):
        cluster.edit(suspend=suspend)
        cluster.settle()
    cluster.vanish()
    cluster.settle()
    assert cluster.indices == [0]
    assert not cluster.holds("Restarting")
    assert cluster.status["restartCount"] == 0


def test_a_job_can_begin_suspended() -> None:
    cluster = Cluster(job(suspend=True))
    cluster.settle()
    assert cluster.holds("Created")
    assert cluster.holds("Suspended")
    assert "startTime" not in cluster.status
    assert not cluster.pods


def test_a_success_counts_though_the_job_is_suspended() -> None:
    cluster = running(1)
    cluster.end(0, 0)
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.holds("Succeeded")


# ---------------------------------------------------------------- deadline, clean-up, time to live


def test_the_deadline_ends_the_job_and_its_pods() -> None:
    cluster = running(2, activeDeadlineSeconds=60, cleanPodPolicy="None")
    assert cluster.last.wake_at == BEGINNING + 60
    cluster.now += 59
    cluster.settle()
    assert not cluster.ended
    cluster.now += 1
    cluster.settle()
    assert cluster.condition("Failed")["reason"] == "DeadlineExceeded"
    assert "spec.activeDeadlineSeconds" in cluster.condition("Failed")["message"]
    assert cluster.indices == []


def test_being_suspended_does_not_count_as_being_active() -> None:
    cluster = running(1, activeDeadlineSeconds=60)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.vanish()
    cluster.now += 1000
    cluster.settle()
    assert cluster.holds("Suspended")


@pytest.mark.parametrize(
    ("policy", "left"), [("All", []), ("Running", [0]), ("None", [0, 1]), (None, [0])]
)
def test_pods_are_cleaned_up_as_asked(policy: str | None, left: list[int]) -> None:
    cluster = Cluster(job(replicas=3, cleanPodPolicy=policy))
    cluster.settle()
    cluster.run(0, 1)
    cluster.settle()
    cluster.end(0, 1)
    cluster.settle()
    assert cluster.holds("Failed")
    assert cluster.indices == left  # the third one, which has not begun, goes in any case
    assert cluster.status["replicaStatuses"]["Worker"]["failed"] == 1
    assert bool(cluster.etcd) is any(pod.phase == "Running" for pod in cluster.pods.values())
    cluster.vanish(1)
    cluster.settle()
    assert (cluster.etcd, cluster.pdb, cluster.services) == (None, None, {})


@pytest.mark.parametrize("ttl", [0, 30])
def test_the_job_goes_when_its_time_has_come(ttl: int) -> None:
    cluster = running(1, ttlSecondsAfterFinished=ttl)
    cluster.end(0, 0)
    cluster.settle()
    assert cluster.deleted is (ttl == 0)
    if ttl:
        assert cluster.last.wake_at == cluster.now + 30
        cluster.now += 30
        assert [type(each) for each in cluster.step().actions] == [DeleteJob]


def test_without_a_time_to_live_it_stays() -> None:
    cluster = running(1)
    cluster.end(0, 0)
    cluster.settle()
    cluster.now += 1e9
    assert not cluster.settle().actions


def test_an_ended_job_is_not_begun_again_by_an_edit() -> None:
    cluster = running(1)
    cluster.end(0, 0)
    cluster.settle()
    cluster.edit(replicas=3)
    cluster.settle()
    assert cluster.indices == [0]
    assert cluster.holds("Succeeded")


def test_nothing_is_done_about_a_job_that_is_being_deleted() -> None:
    cluster = running(2)
    cluster.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.vanish(1)
    before = cluster.status
    plan = cluster.step()
    assert (plan.actions, plan.status) == ((), before)


# ---------------------------------------------------------------- what keeps it from running


def test_an_invalid_spec_is_told_with_its_field_and_can_be_mended() -> None:
    cluster = Cluster(job(minReplicas=5))
    cluster.settle()
    created = cluster.condition("Created")
    assert (created["status"], created["reason"]) == ("False", "InvalidSpec")
    assert created["message"].startswith("spec.minReplicas: ")
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning") == ["InvalidSpec"]
    cluster.edit(minReplicas=1)
    cluster.settle()
    assert cluster.holds("Created")
    assert cluster.indices == [0, 1]


def test_what_runs_runs_on_under_an_invalid_spec() -> None:
    cluster = running(2)
    cluster.edit(minReplicas=9)
    assert not cluster.settle().actions
    assert cluster.holds("Running")
    assert cluster.condition("Created")["reason"] == "InvalidSpec"


def test_an_invalid_spec_hides_no_pods_that_are_missing() -> None:
    cluster = running(2, minReplicas=2, maxReplicas=2)
    cluster.edit(minReplicas=1, maxReplicas=1)
    cluster.vanish(1)
    cluster.settle()
    assert cluster.condition("Running")["reason"] == "InvalidSpec"


def test_an_ended_job_is_cleaned_up_whatever_its_spec_says_now() -> None:
    cluster = running(2)
    cluster.end(0, 1)
    cluster.step()
    cluster.edit(minReplicas=9)
    cluster.settle()
    assert cluster.indices == [0]
    cluster.vanish()
    cluster.settle()
    assert (cluster.etcd, cluster.services) == (None, {})


def test_an_image_that_cannot_be_pulled_is_told_with_its_field() -> None:
    cluster = Cluster(job(replicas=2))
    cluster.settle()
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        for index in (0, 1):
            cluster.change(index, waiting_reason=reason, waiting_message=f"{reason}: …")
        cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "ImagePullFailed")
    assert "spec.replicaSpecs.Worker.template.spec.containers[0].image" in told["message"]
    assert "'img:1'" in told["message"]
    assert cluster.reasons("Warning") == ["ImagePullFailed"]


def test_a_secret_that_may_be_missing_is_told_with_its_field() -> None:
    made = job(rdzvEndpoint="etcd:2379", etcd={"tls": {"secretName": "certs"}})
    cluster = Cluster(made)
    cluster.settle()
    for index in (0, 1):
        cluster.change(index, waiting_reason="ContainerCreating", created_at=cluster.now)
    assert cluster.settle().wake_at == cluster.now + 60
    assert not cluster.reasons("Warning")
    cluster.now += 60
    cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "PodsNotStarting")
    assert "spec.etcd.tls.secretName" in told["message"]
    assert "'certs'" in told["message"]


def test_the_image_of_another_container_is_named_where_it_stands() -> None:
    made = job(replicas=1)
    pod = made["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    pod["initContainers"] = [{"name": "data", "image": "nowhere:1"}]
    cluster = Cluster(made)
    cluster.settle()
    why = 'Back-off pulling image "docker.io/library/nowhere:1"'
    cluster.change(0, waiting_reason="ImagePullBackOff", waiting_message=why)
    cluster.settle()
    field = "spec.replicaSpecs.Worker.template.spec.initContainers[0].image"
    assert field in cluster.condition("Running")["message"]


def test_a_wrong_image_can_be_mended() -> None:
    cluster = running(2)
    cluster.edit(replicas=3)
    cluster.settle()
    cluster.change(2, waiting_reason="ImagePullBackOff")
    spec = cluster.job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["image"] = "img:2"
    before = {pod.name: pod.uid for pod in cluster.pods.values()}
    cluster.settle()
    changed = {name for name, uid in before.items() if cluster.pods[name].uid != uid}
    assert changed == {"digits-worker-2"}
    image = cluster.manifests["digits-worker-2"]["spec"]["containers"][0]["image"]
    assert image == "img:2"


def test_pods_without_a_place_are_told_when_the_job_needs_them() -> None:
    cluster = Cluster(job(replicas=2, minReplicas=2))
    cluster.settle()
    cluster.change(1, unschedulable="0/3 nodes are available")
    cluster.run(0)
    cluster.settle()
    assert cluster.condition("Running")["reason"] == "Unschedulable"
    assert cluster.indices == [0, 1]


def test_a_claim_that_is_missing_is_told_with_its_field() -> None:
    cluster = Cluster(job(replicas=1, checkpoint={"claimName": "disk"}))
    cluster.settle()
    cluster.change(0, unschedulable='persistentvolumeclaim "disk" not found. preemption: …')
    cluster.settle()
    told = cluster.condition("Running")
    assert told["reason"] == "ClaimMissing"
    assert "spec.checkpoint.claimName: the claim 'disk'" in told["message"]


def test_a_store_that_does_not_answer_is_told_with_its_field() -> None:
    cluster = Cluster(CLASSIC)
    cluster.settle()
    cluster.run()
    cluster.settle()
    cluster.now += 10
    cluster.end(0, 4)
    cluster.end(1, 4)
    cluster.settle()
    told = cluster.condition("Running")
    assert (told["status"], told["reason"]) == ("False", "StoreUnreachable")
    assert "spec.rdzvEndpoint: etcd-service:2379" in told["message"]
    cluster.run()  # agents that try again do not train yet
    cluster.settle()
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning").count("StoreUnreachable") == 1
    cluster.report = Report(round=1, world=2, ready=True)
    cluster.settle()
    assert cluster.holds("Running")


def test_what_the_operator_knows_to_be_wrong_is_told() -> None:
    cluster = Cluster(job())
    cluster.problems = (Problem("SecretMissing", "there is no Secret 'a'", "spec.etcd.tls"),)
    cluster.settle()
    assert cluster.condition("Running")["reason"] == "SecretMissing"
    assert cluster.reasons("Warning") == ["SecretMissing"]
    assert cluster.indices == [0, 1]


def test_two_jobs_do_not_meet_under_one_name() -> None:
    cluster = Cluster(job())
    cluster.problems = (Problem("RunIdTaken", "by ns/other", "spec.rdzvId", blocks=True),)
    cluster.settle()
    assert not cluster.pods
    cluster.problems = ()
    cluster.settle()
    assert cluster.indices == [0, 1]


def test_trouble_of_the_jobs_own_etcd_is_told() -> None:
    cluster = Cluster(job(etcd={"image": "nowhere/etcd"}), address="")
    cluster.settle()
    cluster.etcd = EtcdView("digits-etcd", "e", waiting_reason="ImagePullBackOff")
    cluster.settle()
    assert "spec.etcd.image: the image 'nowhere/etcd'" in cluster.condition("Running")["message"]


def test_an_etcd_that_ended_is_followed_by_another() -> None:
    cluster = running(1)
    cluster.etcd = EtcdView("digits-etcd", "old", phase="Failed")
    cluster.settle()
    assert cluster.etcd.uid != "old"
    assert cluster.holds("Running")  # training goes on without it


def test_pods_of_a_lost_node_do_not_hold_up_the_next_attempt() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.now += 60
    cluster.change(1, deleting=True, reason="NodeLost")
    cluster.end(0, 1)
    cluster.settle()
    assert cluster.indices == [0]


def test_a_pod_that_is_not_of_this_attempt_says_nothing() -> None:
    cluster = running(2, backoffLimit=2)
    cluster.now += 60
    cluster.end(0, 1)
    cluster.settle()
    cluster.vanish()
    cluster.pods["stray"] = PodView("stray", 7, "s", attempt=0, phase="Failed", exit_code=1)
    cluster.settle()
    assert cluster.status["attempt"] == 1
    assert "stray" not in cluster.pods
