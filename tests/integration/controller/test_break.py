from __future__ import annotations
import time
from typing import Any
import pytest
from tests.integration.controller.conftest import NAMESPACE
from tests.integration.controller.test_kueue import *  # noqa
from tests.integration.controller.test_kueue import kueue, queued, SCHEDULING, wait_until, pod_at, shown, nothing_is_left, message, _GROUP
from tests.kube.kinds import JOB, POD
from tests.kube.kueue import GATE, MANAGED, Kueue, _role

for _n in list(globals()):
    if _n.startswith("test_"):
        del globals()[_n]


def dump(cluster, kueue):
    print("PODS")
    for n, p in cluster.pods("digits").items():
        m = p["metadata"]
        print(n, p["status"]["phase"], "del" if m.get("deletionTimestamp") else "", m.get("finalizers"), p["spec"].get("schedulingGates"), m["labels"].get(_GROUP))
    for k, w in kueue.workloads.items():
        print("WL", k, w)
    print("MSG", message(cluster), cluster.condition("digits", "Running"))


def settle(cluster, states, kueue, seconds=8):
    end = time.time() + seconds
    words = {"R": "Running", "g": "gated", "S": "Succeeded"}
    wanted = {i: words[c] for i, c in enumerate(states)}
    while time.time() < end:
        if shown(cluster) == wanted:
            return
        time.sleep(0.1)
    dump(cluster, kueue)
    raise AssertionError(f"{shown(cluster)} is not {states}")


@pytest.mark.parametrize("minimum", [1, 2])
def test_1_drained_with_exit_0(cluster, kueue, queued, minimum):
    kueue.set_quota(minimum)
    queued(replicas=minimum, minReplicas=minimum)
    wait_until(cluster, "R" * minimum)
    cluster.kubelet.removes = False
    before = pod_at(cluster, minimum - 1)
    made = []
    cluster.store.listeners.append(lambda c: made.append(c.item["metadata"]["name"]) if c.kind == POD and c.type == "ADDED" else None)
    cluster.store.delete(POD, NAMESPACE, before)
    cluster.kubelet.remove(NAMESPACE, before, 0)
    cluster.kubelet.removes = True
    try:
        settle(cluster, "R" * minimum, kueue)
    finally:
        time.sleep(1)
        print("MADE", len(made), made[:5])
    assert len(made) <= 2


def test_2_force_deleted_on_a_lost_node(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.kubelet.removes = False
    before = pod_at(cluster, 1)
    cluster.store.delete(POD, NAMESPACE, before)
    cluster.store.delete(POD, NAMESPACE, before, {"gracePeriodSeconds": 0})
    settle(cluster, "RR", kueue)


def shape(**resources):
    container = {"name": "elasticjob-worker", "image": "train", "resources": {"requests": resources}}
    return {"spec": {"replicaSpecs": {"Worker": {"template": {"spec": {"containers": [container]}}}}}}


def test_3_shape_changed_and_quota_is_tight(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.edit(JOB, "digits", shape(cpu="500m"))
    time.sleep(1)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 1), 137)
    settle(cluster, "RR", kueue)


def test_4_a_sidecar_injector_changes(cluster, kueue, queued):
    queued(replicas=2)
    wait_until(cluster, "RR")

    def inject(kind, item):
        if kind != POD:
            return item
        spec = item["spec"]
        return {**item, "spec": {**spec, "containers": [*spec["containers"], {"name": "proxy", "image": "p", "resources": {"requests": {"cpu": "10m"}}}]}}
    cluster.store.webhooks.insert(0, inject)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 1), 137)
    settle(cluster, "RR", kueue)


def test_5_sidecars_run_on(cluster, kueue, queued):
    queued(replicas=2)
    wait_until(cluster, "RR")
    kueue.add_rival("waits", 4, priority=1)
    for i in range(2):
        name = pod_at(cluster, i)
        cluster.store.change(POD, NAMESPACE, name, {"status": {"containerStatuses": [{"name": "elasticjob-worker", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}})
    cluster.wait_for(lambda: cluster.condition("digits", "Succeeded").get("status") == "True", "done")
    time.sleep(3)
    dump(cluster, kueue)
    assert kueue.is_admitted("waits")


def test_6_kueue_is_gone(cluster, kueue, queued):
    queued()
    wait_until(cluster, "RRRR")
    kueue.stop()
    cluster.store.delete(JOB, NAMESPACE, "digits")
    end = time.time() + 6
    while time.time() < end and cluster.pods("digits"):
        time.sleep(.1)
    dump_pods = list(cluster.pods("digits"))
    assert not dump_pods


def test_7_another_attempt_keeps_its_quota(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=2, backoffLimit=3)
    wait_until(cluster, "RR")
    kueue.add_rival("waits", 1, priority=30)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 0), 1)
    cluster.wait_for(lambda: cluster.job("digits")["status"].get("attempt") == 1, "again")
    settle(cluster, "RR", kueue)
    assert not kueue.is_admitted("waits")


def test_7b_another_attempt_equal_priority(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=2, backoffLimit=3)
    wait_until(cluster, "RR")
    kueue.add_rival("waits", 1, priority=50)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 0), 1)
    cluster.wait_for(lambda: cluster.job("digits")["status"].get("attempt") == 1, "again")
    settle(cluster, "RR", kueue)


def test_9_gated_job_asks_for_a_lower_minimum(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=4, minReplicas=3)
    wait_until(cluster, "ggg")
    cluster.edit(JOB, "digits", {"spec": {"minReplicas": 2}})
    settle(cluster, "RRg", kueue) if False else settle(cluster, "RRgg", kueue)


def test_10_invalid_spec_and_drain_then_suspend(cluster, kueue, queued):
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.edit(JOB, "digits", {"spec": {"scheduling": {"queue": "Bad Name"}}})
    time.sleep(1)
    cluster.store.delete(POD, NAMESPACE, pod_at(cluster, 1))
    time.sleep(1)
    cluster.edit(JOB, "digits", {"spec": {"scheduling": {"queue": "team"}}})
    settle(cluster, "RR", kueue)


@pytest.mark.parametrize("policy", ["All", "None", "Running"])
def test_11_clean(cluster, kueue, queued, policy):
    queued(replicas=3, cleanPodPolicy=policy)
    wait_until(cluster, "RRR")
    kueue.add_rival("waits", 4, priority=1)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 0), 1)
    cluster.wait_for(lambda: cluster.condition("digits", "Failed").get("status") == "True", "failed")
    time.sleep(3)
    dump(cluster, kueue)
    if policy == "None":
        for i in (1, 2):
            cluster.kubelet.finish(NAMESPACE, pod_at(cluster, i), 3)
        time.sleep(2)
        dump(cluster, kueue)
    assert kueue.is_admitted("waits")


def test_12_queue_changes_while_running(cluster, kueue, queued):
    kueue.set_quota(2)
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.edit(JOB, "digits", {"spec": {"scheduling": {"priorityClass": "other"}}})
    time.sleep(1)
    cluster.store.delete(POD, NAMESPACE, pod_at(cluster, 1))
    settle(cluster, "RR", kueue)


def test_13_orphan(cluster, kueue, queued):
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.store.delete(JOB, NAMESPACE, "digits", {"propagationPolicy": "Orphan"})
    time.sleep(2)
    for name, pod in cluster.pods("digits").items():
        cluster.store.change(POD, NAMESPACE, name, {"metadata": {"ownerReferences": None}}) if pod["metadata"].get("ownerReferences") else None
    for name in list(cluster.pods("digits")):
        cluster.store.delete(POD, NAMESPACE, name)
    time.sleep(3)
    dump_pods = {n: p["metadata"].get("ownerReferences") for n, p in cluster.pods("digits").items()}
    assert not dump_pods


def test_14_same_name_at_once(cluster, kueue, queued):
    queued()
    wait_until(cluster, "RRRR")
    cluster.store.delete(JOB, NAMESPACE, "digits")
    queued()
    settle(cluster, "RRRR", kueue, 15)


def test_15_preempted_while_it_ends(cluster, kueue, queued):
    """min 2: both pods succeed while being deleted (preempted)."""
    queued(replicas=2)
    wait_until(cluster, "RR")
    cluster.kubelet.removes = False
    kueue.add_rival("big", 4, priority=99)
    cluster.wait_for(lambda: all(p["metadata"].get("deletionTimestamp") for p in cluster.pods("digits").values()), "leaving")
    for n in list(cluster.pods("digits")):
        cluster.kubelet.remove(NAMESPACE, n, 0)
    cluster.kubelet.removes = True
    kueue.remove_rival("big")
    settle(cluster, "RR", kueue)


@pytest.mark.parametrize("edit", [{"queue": "b"}, {"gang": "kai"}])
def test_20_gang_edited(cluster, controller, submit, edit):
    from tests.integration.controller.test_gangs import _install
    from tests.kube import pod_groups
    _install(cluster, pod_groups.VOLCANO, pod_groups.KAI)
    submit(replicas=2, minReplicas=2, scheduling={"queue": "a", "gang": "volcano"})
    cluster.wait_for(lambda: [p["status"]["phase"] for n, p in cluster.pods("digits").items() if "etcd" not in n] == ["Running"] * 2, "RR")
    before = {n: p["metadata"] for n, p in cluster.pods("digits").items()}
    cluster.edit(JOB, "digits", {"spec": {"scheduling": edit}})
    time.sleep(1)
    cluster.store.delete(POD, NAMESPACE, "digits-worker-1")
    cluster.wait_for(lambda: cluster.pods("digits").get("digits-worker-1", {"metadata": {"uid": before["digits-worker-1"]["uid"]}})["metadata"]["uid"] != before["digits-worker-1"]["uid"], "new")
    time.sleep(1)
    for n, p in cluster.pods("digits").items():
        print(n, {k: v for k, v in p["metadata"]["annotations"].items() if "group" in k}, p["spec"].get("schedulerName"))
    print("[PG", [(k.group, i["metadata"]["name"], i["spec"]) for k in (pod_groups.VOLCANO, pod_groups.KAI) for i in cluster.store.list(k)])
    groups = {tuple(v for k, v in p["metadata"]["annotations"].items() if "group-name" in k) for n, p in cluster.pods("digits").items()}
    assert len(groups) == 1


def test_21_template_has_kueue_labels(cluster, kueue, controller, submit):
    container = {"name": "elasticjob-worker", "image": "train", "args": ["train.py"]}
    template = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": {"containers": [container]}}
    submit(replicas=2, minReplicas=2, worker={"template": template})
    settle(cluster, "RR", kueue)
    cluster.kubelet.finish(NAMESPACE, pod_at(cluster, 1), 137)
    time.sleep(1)
    settle(cluster, "RR", kueue)
    cluster.store.delete(JOB, NAMESPACE, "digits")
    nothing_is_left(cluster, kueue)


def test_22_rolling(cluster, kueue, queued):
    kueue.set_quota(3)
    queued(replicas=3, minReplicas=2, rollout="Rolling")
    wait_until(cluster, "RRR")
    cluster.edit(JOB, "digits", shape(cpu="500m"))
    time.sleep(14)
    dump(cluster, kueue)
    print(cluster.condition("digits", "Outdated"), [e["message"] for e in cluster.events("digits")][-8:])
    assert shown(cluster) == {0: "Running", 1: "Running", 2: "Running"}


def test_23_everything_edited_while_suspended_and_resumed(cluster, kueue, queued):
    queued(replicas=3)
    wait_until(cluster, "RRR")
    cluster.kubelet.removes = False
    cluster.edit(JOB, "digits", {"spec": {"suspend": True}})
    time.sleep(1)
    cluster.edit(JOB, "digits", {"spec": {"suspend": False, "minReplicas": 3}})
    time.sleep(1)
    for n, p in list(cluster.pods("digits").items()):
        if p["metadata"].get("deletionTimestamp"):
            cluster.kubelet.remove(NAMESPACE, n)
    cluster.kubelet.removes = True
    settle(cluster, "RRR", kueue)


def test_24_killed_often(cluster, kueue, start, submit):
    import random
    c = start()
    submit(replicas=4, minReplicas=2, scheduling=SCHEDULING)
    wait_until(cluster, "RRRR")
    for i in range(3):
        for j in range(4):
            try:
                cluster.kubelet.finish(NAMESPACE, pod_at(cluster, j), 137)
            except Exception as e:
                print(e)
        time.sleep(random.uniform(0, .1))
        c.end(9)
        c = start()
        try:
            settle(cluster, "RRRR", kueue, 30)
        except AssertionError:
            print(i)
            raise


def test_25_minimum_waits_behind_its_own_surplus(cluster, kueue, queued):
    """All of one priority; the minimum is evicted by an admin or PodsReady."""
    kueue.set_quota(4)
    queued()
    wait_until(cluster, "RRRR")
    group = next(k for k in kueue.workloads if not k.startswith(("pod/", "rival")))
    with kueue.store.changed:
        kueue.workloads[group].evicted = "PodsReady timeout"
        kueue.store.changed.notify_all()
    cluster.store.change(POD, NAMESPACE, pod_at(cluster, 0), {"metadata": {"annotations": {"x": "y"}}})
    settle(cluster, "RRRR", kueue)
