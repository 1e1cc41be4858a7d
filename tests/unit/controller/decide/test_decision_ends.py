"""What is done when pods end, and when the job does, rule by rule."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.decide.job_types import CreatePod, DeleteJob
from elastic_runtime.controller.decide.pod_failures import pause
from elastic_runtime.kubernetes.api_times import parse_time
from tests.unit.controller.jobs import UID, job
from tests.unit.controller.simulated import BEGINNING, Cluster, begun, running

IGNORE = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}

# ---------------------------------------------------------------- pods that end


@pytest.mark.parametrize(
    ("code", "reason"),
    [(137, "OOMKilled"), (143, ""), (None, "Evicted"), (5, ""), (None, "NodeLost")],
)
def test_a_pod_that_was_taken_away_is_replaced_at_once(code: int | None, reason: str) -> None:
    cluster = running(3)
    before = cluster.pods["digits-worker-1"].uid
    cluster.wait(60).end(1, code, reason).settle()
    assert cluster.indices == [0, 1, 2]
    assert cluster.pods["digits-worker-1"].uid != before
    assert cluster.status["attempt"] == 0
    assert not cluster.ended


def test_restarting_is_seen_until_the_pods_run_again(cluster: Cluster) -> None:
    cluster.wait(60).end(1, 137).settle()
    assert cluster.holds("Restarting")
    assert "digits-worker-1 ended: exit code 137" in cluster.condition("Restarting")["message"]
    assert cluster.holds("Running")  # the other one goes on
    cluster.wait(5).settle()
    assert cluster.holds("Restarting")
    cluster.run().settle()
    assert cluster.condition("Restarting")["status"] == "False"
    assert cluster.reasons().count("PodReplaced") == 1


def test_a_job_below_its_minimum_does_not_say_that_it_runs() -> None:
    cluster = running(2, minReplicas=2)
    cluster.vanish(0).settle()
    assert not cluster.holds("Running")
    assert cluster.holds("Restarting")
    assert cluster.indices == [0, 1]


def test_a_deleted_pod_is_followed_when_its_name_is_free(cluster: Cluster) -> None:
    cluster.delete(1).settle()
    assert cluster.indices == [0]
    plan = cluster.vanish().step()
    assert [each.index for each in plan.actions if isinstance(each, CreatePod)] == [1]


def test_pods_that_fall_again_and_again_wait_longer_and_longer(cluster: Cluster) -> None:
    waits = []
    for _ in range(5):
        cluster.end(1, 137)
        waits.append(cluster.settle_until(lambda: not cluster.pods["digits-worker-1"].ended))
        cluster.run().settle()
    assert waits == [0, 1, 2, 4, 8]
    cluster.wait(60)  # a long life
    cluster.end(1, 137).settle()
    assert cluster.pods["digits-worker-1"].phase == "Pending"
    assert [pause(n) for n in (1, 2, 7, 8, 9999)] == [0, 1, 32, 60, 60]


def test_a_fallen_pod_is_counted_once_however_often_it_is_looked_at() -> None:
    cluster = running(1)
    for _ in range(2):
        cluster.end(0, 137).settle()
        cluster.wait(1).settle()
        cluster.run().settle()
    assert cluster.status["restarts"]["lost"] == 2
    assert cluster.status["restartCount"] == 2


def test_agents_count_what_they_live_through(cluster: Cluster) -> None:
    cluster.say(round=3, world=2, restarts={"killed": 2, "planned": 1}, ready=True).settle()
    cluster.say(round=4, world=2, restarts={"killed": 2, "lost": 1}, ready=True)
    cluster.settle()  # it shrank: another life of the job, with a fresh budget
    assert cluster.status["restarts"] == {"failed": 0, "killed": 4, "lost": 1, "planned": 1}
    assert cluster.status["restartCount"] == 5
    cluster.end(1, 137).settle()
    assert cluster.status["restartCount"] == 5  # the other agent will say so
    cluster.run().settle()
    cluster.say(run_id="another-0", round=9, world=9, restarts={"killed": 99}).settle()
    assert (cluster.status["round"], cluster.status["restartCount"]) == (4, 5)


# ---------------------------------------------------------------- failures


def test_a_failure_of_the_script_ends_the_job_with_the_reason() -> None:
    cluster = running(3)
    plan = cluster.end(1, 1).end(2, 1).step()
    # The end is written before anything follows from it.
    assert cluster.holds("Failed") and not plan.actions
    assert plan.wake_at <= cluster.now
    cluster.settle()
    cluster.expect("Failed", True, "PodFailed", "digits-worker-1 ended: exit code 1")
    assert parse_time(cluster.status["completionTime"]) == cluster.now
    assert not cluster.holds("Running")
    assert cluster.reasons("Warning") == ["PodFailed"]


def test_the_whole_job_is_tried_again_under_another_run_id() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.wait(60)
    cluster.end(0, 1).end(1, 1).settle()
    assert cluster.status["attempt"] == 1
    assert cluster.holds("Restarting")
    assert not cluster.holds("Running")
    assert cluster.status["restarts"]["failed"] == 1  # two pods, one failure
    assert {pod.attempt for pod in cluster.pods.values()} == {1}
    assert f"--rdzv_id={UID}-1" in cluster.worker(0)["args"]
    cluster.run().settle()
    assert cluster.holds("Running")
    assert not cluster.holds("Restarting")
    cluster.end(1, 1).settle()
    cluster.expect("Failed", True, "BackoffLimitExceeded", "backoffLimit 1 is used up")


def test_the_next_attempt_waits_for_pods_of_the_last_one() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.wait(60).end(0, 1).settle()
    assert cluster.indices == []  # the other one is saving, perhaps
    cluster.vanish().settle()
    assert cluster.indices == [0, 1]


def test_attempts_that_fall_at_once_wait_longer_and_longer() -> None:
    cluster = running(1, backoffLimit=4)
    waits = []
    for _ in range(4):
        waits.append(cluster.end(0, 1).settle_until(lambda: bool(cluster.indices)))
        cluster.run().settle()
    assert waits == [0, 1, 2, 4]


def test_an_attempt_does_not_pay_for_the_falls_of_the_last_one() -> None:
    cluster = running(2, backoffLimit=1)
    for _ in range(3):
        cluster.wait(20).end(1, 137).settle()
        cluster.wait(2).settle()
        cluster.run()
    cluster.end(1, 137).settle()
    assert cluster.pods["digits-worker-1"].ended
    cluster.end(0, 1).settle()
    assert cluster.indices == [0, 1]


def test_a_usage_error_ends_the_job_whatever_the_limits_say() -> None:
    cluster = running(2, backoffLimit=9)
    cluster.end(0, 2).settle()
    assert cluster.condition("Failed")["reason"] == "UsageError"


def test_pods_that_may_fail_are_left_as_long_as_enough_are_there() -> None:
    cluster = running(3, minReplicas=2, failurePolicy={"rules": [IGNORE]})
    cluster.end(2, 42).settle()
    assert cluster.holds("Running")
    assert cluster.pods["digits-worker-2"].phase == "Failed"
    cluster.end(1, 42).settle()
    assert cluster.condition("Failed")["reason"] == "TooFewPods"


# ---------------------------------------------------------------- success


def test_a_replacement_that_is_left_as_it_ended_is_not_waited_for() -> None:
    cluster = running(1, minReplicas=1, maxReplicas=1, spares=1, failurePolicy={"rules": [IGNORE]})
    cluster.end(0, None, "Evicted").settle()
    assert cluster.holds("Restarting")
    cluster.run(0).end(0, 42).settle()
    assert cluster.holds("Running")
    assert not cluster.holds("Restarting")


def test_the_job_has_succeeded_when_no_pod_runs_any_more() -> None:
    cluster = running(3)
    cluster.end(0, 0).settle()
    assert not cluster.ended
    cluster.vanish(1).settle()
    assert cluster.indices == [0, 2]  # nothing is created any more
    cluster.end(2, 0).settle()
    assert cluster.holds("Succeeded")
    assert cluster.reasons()[-1] == "Succeeded"


def test_a_failure_beside_a_success_is_a_failure(cluster: Cluster) -> None:
    cluster.end(0, 0).end(1, 1).settle()
    assert cluster.holds("Failed")


def test_a_failure_beside_a_success_is_tried_again_where_that_is_allowed() -> None:
    cluster = running(2, backoffLimit=1)
    cluster.end(0, 0).settle()
    cluster.end(1, 1).settle()
    assert cluster.indices == [0, 1]
    cluster.run().settle()
    assert cluster.holds("Running")


def test_a_sidecar_does_not_keep_the_job_from_its_end() -> None:
    cluster = running(1)
    cluster.change(0, exit_code=0, finished_at=cluster.now)  # the pod's phase is still Running
    cluster.settle()
    assert cluster.holds("Succeeded")


# ---------------------------------------------------------------- deadline, clean-up, time to live


def test_the_deadline_ends_the_job_and_its_pods() -> None:
    cluster = running(2, activeDeadlineSeconds=60, cleanPodPolicy="None")
    assert cluster.last.wake_at == BEGINNING + 60
    cluster.wait(59).settle()
    assert not cluster.ended
    cluster.wait(1).settle()
    cluster.expect("Failed", True, "DeadlineExceeded", "spec.activeDeadlineSeconds")
    assert cluster.indices == []


def test_a_start_that_cannot_be_read_ends_no_job() -> None:
    cluster = running(1, activeDeadlineSeconds=60)
    cluster.status["startTime"] = "some day"
    cluster.wait(1).settle()
    assert not cluster.ended


def test_being_suspended_does_not_count_as_being_active() -> None:
    cluster = running(1, activeDeadlineSeconds=60)
    cluster.edit(suspend=True).settle()
    cluster.vanish().wait(1000).settle()
    assert cluster.holds("Suspended")


@pytest.mark.parametrize(
    ("policy", "left"), [("All", []), ("Running", [0]), ("None", [0, 1]), (None, [0])]
)
def test_pods_are_cleaned_up_as_asked(policy: str | None, left: list[int]) -> None:
    cluster = begun(job(replicas=3, cleanPodPolicy=policy))
    cluster.run(0, 1).settle()
    cluster.end(0, 1).settle()
    assert cluster.holds("Failed")
    assert cluster.indices == left  # the third one, which has not begun, goes in any case
    assert cluster.status["replicaStatuses"]["Worker"]["failed"] == 1
    assert bool(cluster.etcd) is any(pod.phase == "Running" for pod in cluster.pods.values())
    cluster.vanish(1).settle()
    assert (cluster.etcd, cluster.pdb, cluster.services) == (None, None, {})


@pytest.mark.parametrize("ttl", [0, 30])
def test_the_job_goes_when_its_time_has_come(ttl: int) -> None:
    cluster = running(1, ttlSecondsAfterFinished=ttl)
    cluster.end(0, 0).settle()
    assert cluster.deleted is (ttl == 0)
    if ttl:
        assert cluster.last.wake_at == cluster.now + 30
        cluster.wait(30)
        assert [type(each) for each in cluster.step().actions] == [DeleteJob]


def test_without_a_time_to_live_it_stays_and_no_edit_begins_it_again() -> None:
    cluster = running(1)
    cluster.end(0, 0).settle()
    assert not cluster.wait(1e9).settle().actions
    cluster.edit(replicas=3).settle()
    assert cluster.indices == [0]
    assert cluster.holds("Succeeded")


def test_nothing_is_done_about_a_job_that_is_being_deleted(cluster: Cluster) -> None:
    cluster.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.vanish(1)
    before = cluster.status
    plan = cluster.step()
    assert (plan.actions, plan.status) == ((), before)


def test_an_end_that_was_said_by_hand_is_an_end() -> None:
    cluster = running(2, ttlSecondsAfterFinished=60)
    cluster.job["status"]["conditions"] = [{"type": "Failed", "status": "True"}]
    cluster.settle()
    assert parse_time(cluster.status["completionTime"]) == int(cluster.now)
    cluster.wait(60).settle()
    assert cluster.deleted


def told(cluster: Cluster, index: int, name: str) -> int:
    """A variable of the pod with an index, as a number; 0 if it has none of that name."""
    found = [each["value"] for each in cluster.worker(index)["env"] if each["name"] == name]
    return int(*found)


def test_a_later_pod_of_a_name_says_so_and_if_the_job_is_at_work(cluster: Cluster) -> None:
    first = told(cluster, 0, "ELASTIC_NODE_LIFE")
    assert first > 0
    cluster.wait(0.01).vanish(0).settle()
    assert told(cluster, 0, "ELASTIC_NODE_LIFE") > first
    cluster.run().settle()
    assert not told(cluster, 1, "ELASTIC_RESUMING")
    cluster.job["status"]["round"] = 1
    cluster.vanish(1).settle()
    assert told(cluster, 1, "ELASTIC_RESUMING")
    cluster.vanish(0, 1).settle()
    assert not told(cluster, 0, "ELASTIC_RESUMING")
