"""``elasticctl`` against an API server: real processes, HTTP, a kubeconfig that leads there."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.integration.cli.conftest import PATIENCE, Ctl, Start, add_job, assert_refused
from tests.kube.kinds import EVENT, JOB, POD
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import FakeCluster


def _say(cluster: FakeCluster, name: str = "one", *holding: str, **status: Any) -> None:
    """Writes a status as the controller does."""
    conditions = [
        {"type": one, "status": "True", "reason": "Because", "message": f"why {one}"}
        for one in holding
    ]
    generation = cluster.job(name)["metadata"].get("generation", 1)
    status = {"conditions": conditions, "observedGeneration": generation, **status}
    cluster.store.change(JOB, "default", name, {"status": status})


def _add_pod(cluster: FakeCluster, index: int, job: str = "one") -> str:
    name = f"{job}-worker-{index}"
    owner = {"kind": "ElasticJob", "name": job, "uid": cluster.job(job)["metadata"]["uid"]}
    labels = {
        "group-name": "elastic.pytorch.org",
        "job-name": job,
        "replica-index": str(index),
        "app.kubernetes.io/component": "worker",
    }
    metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    containers = [{"name": "proxy", "image": "y:1"}, {"name": "elasticjob-worker", "image": "x:1"}]
    cluster.add(POD, {"metadata": metadata, "spec": {"containers": containers}})
    return name


def _write(cluster: FakeCluster, pod: str, *lines: tuple[int, str]) -> None:
    """A pod prints lines, each at its second."""
    text = "".join(f"2026-01-01T00:00:{at:02d}.000000000Z {line}\n" for at, line in lines)
    cluster.kubelet.write("default", pod, text)


# ---------------------------------------------------------------- submit


def test_submit_makes_the_job_that_its_flags_say(cluster: FakeCluster, ctl: Ctl) -> None:
    flags = ("--image", "x:1", "--name", "one", "--min", "1", "--max", "4", "--env", "A=b")
    code, out, err = ctl("submit", "/app/train.py", *flags, "--", "--lr", "1")
    assert (code, err) == (0, "")
    assert out == "submitted one in the namespace default; /app/train.py is looked for in x:1\n"
    spec = cluster.job("one")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    (container,) = spec["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"] == ["/app/train.py", "--lr", "1"]

    assert_refused(ctl, "there is an ElasticJob 'one'", "submit", "train.py", *flags)


def test_what_a_dry_run_prints_can_be_submitted(
    cluster: FakeCluster, ctl: Ctl, tmp_path: Path
) -> None:
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    asked = ("submit", "train.py", "--image", "x:1", "--name", "one", "--dry-run")
    code, text, err = ctl(*asked, env=nowhere)
    assert (code, err) == (0, "")
    assert json.loads(ctl(*asked, "-o", "json", env=nowhere)[1]) == yaml.safe_load(text)

    assert ctl("submit", "-f", "-", "-n", "elastic-job", stdin=text)[0] == 0
    assert cluster.job("one", "elastic-job")["spec"] == yaml.safe_load(text)["spec"]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    code, out, _ = ctl("submit", "-f", str(file), "-o", "yaml")
    made = yaml.safe_load(out)
    assert (code, made["metadata"]["uid"]) == (0, cluster.job("one")["metadata"]["uid"])


def test_bad_bounds_and_misplaced_options_are_refused_before_anything_is_sent(
    cluster: FakeCluster, quick: Ctl
) -> None:
    bounds = ("--min", "3", "--max", "2")
    assert_refused(quick, "spec.minReplicas", "submit", "train.py", "--image", "x:1", *bounds)
    why = "'--epochs'. Options of the script come after --."
    assert_refused(quick, why, "submit", "train.py", "--image", "x:1", "--epochs", "3")
    assert not cluster.counts()


@pytest.mark.parametrize(("end", "code"), [("Succeeded", 0), ("Failed", 1), ("", 2)])
def test_submit_waits_for_the_end(cluster: FakeCluster, start: Start, end: str, code: int) -> None:
    command = start("submit", "train.py", "--image", "x:1", "--name", "one", "--wait")
    command.until("submitted one")
    _say(cluster, "one", "Created", "Running", round=2, worldSize=3)
    command.until("one: running, round 2 of 3 workers (why Running)")
    if end:
        _say(cluster, "one", "Created", end)
    else:
        cluster.store.delete(JOB, "default", "one", {})
    ended, lines = command.end()
    assert ended == code
    assert {"Succeeded": "one: succeeded", "Failed": "why Failed", "": "was deleted"}[end] in (
        lines[-1]
    )


def test_an_interrupted_wait_leaves_the_job_alone(cluster: FakeCluster, start: Start) -> None:
    command = start("submit", "train.py", "--image", "x:1", "--name", "one", "--wait")
    command.until("submitted one")
    _say(cluster, "one", "Created")
    command.until("one: pending")
    code, lines = command.end(signal.SIGINT)
    assert (code, "one keeps running" in "".join(lines)) == (130, True)
    assert cluster.job("one")


# ---------------------------------------------------------------- look


def test_jobs_lists_what_a_namespace_or_the_cluster_has(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster, "two")
    add_job(cluster, "one")
    add_job(cluster, "far", namespace="elastic-job")
    ready = {"Worker": {"ready": 2}}
    shown = {"round": 3, "worldSize": 4, "step": 120, "goodput": "91%"}
    _say(cluster, "one", "Running", replicaStatuses=ready, **shown)
    _, out, _ = quick("jobs")
    assert [line.split()[:7] for line in out.splitlines()] == [
        ["name", "state", "world", "wanted", "step", "goodput", "restarts"],
        ["one", "running", "4", "2", "120", "91%", "0"],
        ["two", "unseen", "–", "2", "–", "–", "0"],
    ]
    told = json.loads(quick("jobs", "-A", "--format", "json")[1])
    assert [(job["namespace"], job["name"]) for job in told] == [
        ("default", "one"),
        ("default", "two"),
        ("elastic-job", "far"),
    ]


def test_jobs_are_watched(cluster: FakeCluster, start: Start) -> None:
    add_job(cluster)
    command = start("jobs", "--watch", "--interval", "0.1", "--format", "json")
    command.until('"unseen"')
    _say(cluster, "one", "Created", "Running")
    command.until('"running"')
    assert command.end(signal.SIGINT)[0] == 130


def test_status_shows_the_job_its_pods_and_its_events(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster)
    _add_pod(cluster, 0)
    cluster.kubelet.wait_for_image("default", _add_pod(cluster, 1), "no such image")
    _say(cluster, "one", "Created", "Running", round=3, worldSize=1, step=5, lastCheckpointStep=4)
    about = {"kind": "ElasticJob", "name": "one", "uid": cluster.job("one")["metadata"]["uid"]}
    event = {
        "metadata": {"name": "e1", "namespace": "default"},
        "involvedObject": about,
        "reason": "PodReplaced",
        "message": "one-worker-1 was evicted",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    cluster.add(EVENT, event)
    code, out, err = quick("status", "one")
    assert (code, err) == (0, "")
    for words in (
        "job one · namespace default · running",
        "round   3: 1 worker",
        "step    5 · last checkpoint: step 4",
        "ImagePullBackOff",
        "no such image",
        "one-worker-1 was evicted",
    ):
        assert words in out
    told = json.loads(quick("status", "one", "--format", "json")[1])
    assert [(pod["name"], pod["state"]) for pod in told["pods"]] == [
        ("one-worker-0", "running"),
        ("one-worker-1", "ImagePullBackOff"),
    ]
    assert "PodReplaced" in quick("events", "one")[1]


def test_status_goes_on_without_what_may_not_be_seen(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster)
    with cluster.trouble(lambda asked: asked.kind == EVENT, 403, "Forbidden", "events: no"):
        code, out, _ = quick("status", "one")
        assert (code, "you may not list events" in out) == (0, True)
        assert quick("events", "one")[0] == 4


def test_status_is_watched_until_the_job_is_over(cluster: FakeCluster, start: Start) -> None:
    add_job(cluster)
    command = start("status", "one", "--watch", "--interval", "0.1", "--format", "json")
    command.until('"state": "unseen"')
    with cluster.trouble(lambda _: True, 503, "ServiceUnavailable", "restarting") as trouble:
        refused = cluster.counts()["get elasticjobs"]
        wait_for(lambda: cluster.counts()["get elasticjobs"] > refused + 1, PATIENCE, "more looks")
        assert trouble
    _say(cluster, "one", "Created", "Succeeded")
    code, lines = command.end()
    assert (code, json.loads(lines[-1])["state"]) == (0, "succeeded")


def test_a_job_in_the_cluster_and_a_run_in_a_store_are_not_mixed(
    cluster: FakeCluster, quick: Ctl
) -> None:
    add_job(cluster)
    store = ("--rdzv-endpoint", "etcd://nowhere")
    for command in ("status", "events", "scale"):
        assert_refused(quick, "--rdzv-endpoint belongs to a store", command, "one", *store)
        assert_refused(quick, "which job?", command)
    of_a_run = ("status", "-n", "default", *store, "--run-id", "r")
    assert_refused(quick, "-n and --context are for a job of a cluster", *of_a_run)
    # In a pod of a job there is an endpoint in the environment; nobody asked for it.
    inside = {"PET_RDZV_ENDPOINT": "nowhere:1", "PET_RDZV_BACKEND": "etcd-v3"}
    assert quick("status", "one", env=inside)[0] == 0


# ---------------------------------------------------------------- change


def test_scale_is_one_request_within_the_bounds(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster, low=2)
    assert quick("scale", "one", "4") == (0, "one: 4 pods, 2 before\n", "")
    assert cluster.job("one")["spec"]["replicaSpecs"]["Worker"]["replicas"] == 4
    assert cluster.counts()["patch elasticjobs/scale"] == 1
    for size, bound in (("1", "spec.minReplicas (2)"), ("5", "spec.maxReplicas (4)")):
        assert_refused(quick, bound, "scale", "one", size)
    assert_refused(quick, "scale one to what?", "scale", "one")
    words = "--min and --max are for a run in a store"
    assert_refused(quick, words, "scale", "one", "2", "--min", "1")
    assert cluster.counts()["patch elasticjobs/scale"] == 1


def test_suspend_and_resume(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster)
    assert quick("suspend", "one")[:2] == (0, "one is being suspended\n")
    assert cluster.job("one")["spec"]["suspend"] is True
    assert quick("suspend", "one")[:2] == (0, "one is suspended already\n")
    assert quick("resume", "one")[:2] == (0, "one is being resumed\n")
    assert cluster.job("one")["spec"]["suspend"] is False
    assert quick("resume", "one")[:2] == (0, "one is not suspended\n")
    assert cluster.counts()["patch elasticjobs"] == 2


def test_a_job_that_has_ended_is_not_changed(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster)
    _say(cluster, "one", "Created", "Failed")
    for arguments in (("scale", "one", "3"), ("suspend", "one"), ("resume", "one")):
        assert_refused(quick, "one has failed already", *arguments)


def test_delete_waits_until_the_pods_are_gone(cluster: FakeCluster, start: Start) -> None:
    add_job(cluster)
    pod = _add_pod(cluster, 0)
    cluster.kubelet.removes = False
    command = start("delete", "one", "--wait")
    cluster.wait_for(
        lambda: cluster.store.get(POD, "default", pod)["metadata"].get("deletionTimestamp"),
        "the pod is asked to end",
    )
    looked = cluster.counts()["list pods"]
    wait_for(lambda: cluster.counts()["list pods"] > looked + 1, PATIENCE, "it waits for the pod")
    cluster.kubelet.remove("default", pod)
    assert command.end() == (0, ["one is gone\n"])


# ---------------------------------------------------------------- logs


def test_logs_of_all_pods_are_in_the_order_of_time(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster)
    first, second = _add_pod(cluster, 0), _add_pod(cluster, 1)
    cluster.kubelet.wait_for_image("default", _add_pod(cluster, 2))
    _write(cluster, first, (1, "[default0]:a"), (4, "[default0]:d"), (5, "agent e"))
    _write(cluster, second, (2, "[default1]:b"), (3, "[default10]:c"))
    code, out, err = quick("logs", "one")
    assert code == 0
    assert out.splitlines() == [
        "worker-0 | [default0]:a",
        "worker-1 | [default1]:b",
        "worker-1 | [default10]:c",
        "worker-0 | [default0]:d",
        "worker-0 | agent e",
    ]
    assert "worker-2 has printed nothing yet: ImagePullBackOff" in err
    assert quick("logs", "one", "--rank", "1")[1] == "worker-1 | [default1]:b\n"
    assert quick("logs", "one", "--pod", "0", "--tail", "1")[1] == "worker-0 | agent e\n"

    _say(cluster, "one", "Running", worldSize=2)
    assert_refused(quick, "the ranks of its world are 0 to 1", "logs", "one", "--rank", "7")
    words = "one has no pod '9': it has worker-0, worker-1, worker-2"
    assert_refused(quick, words, "logs", "one", "--pod", "9")


def test_logs_are_followed_through_new_pods_and_broken_streams(
    cluster: FakeCluster, start: Start
) -> None:
    add_job(cluster)
    first = _add_pod(cluster, 0)
    _write(cluster, first, (1, "[default0]:step 1"))
    command = start("logs", "one", "-f")
    assert command.until("step 1") == "worker-0 | [default0]:step 1\n"
    second = _add_pod(cluster, 1)
    _write(cluster, second, (2, "[default1]:step 2"))
    command.until("step 2")

    cluster.break_watches()
    _write(cluster, first, (3, "[default0]:step 3"))
    command.until("step 3")
    cluster.kubelet.lose("default", second)
    _write(cluster, first, (4, "[default0]:step 4"))
    _say(cluster, "one", "Created", "Succeeded")
    cluster.kubelet.finish("default", first, 0)
    code, lines = command.end()
    assert code == 0
    assert sorted(line.rpartition(" ")[2].strip() for line in lines) == ["1", "2", "3", "4"]


def test_a_rank_is_followed_to_another_pod(cluster: FakeCluster, start: Start) -> None:
    add_job(cluster)
    first, second = _add_pod(cluster, 0), _add_pod(cluster, 1)
    command = start("logs", "one", "-f", "--rank", "1")
    _write(cluster, first, (1, "[default0]:no"))
    _write(cluster, second, (1, "[default1]:before"))
    command.until("worker-1 | [default1]:before")
    _write(cluster, first, (2, "[default1]:after"))
    command.until("worker-0 | [default1]:after")
    cluster.store.delete(JOB, "default", "one", {})
    code, lines = command.end()
    assert (code, len(lines)) == (0, 2)
