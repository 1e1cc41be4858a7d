"""What the controller knows of jobs and of what belongs to them, however it is learned."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.cluster_state import STATES, ClusterState
from elastic_runtime.controller.decide.job_types import Problem
from elastic_runtime.controller.decide.status_builder import CONDITIONS, StatusBuilder
from elastic_runtime.controller.informer_cache import InformerCache

KEY = ("default", "digits")


def job(version: int = 1, name: str = "digits", uid: str = "", **more: Any) -> dict[str, Any]:
    meta = {"namespace": "default", "name": name, "uid": uid or f"uid-{name}"}
    meta |= {"resourceVersion": str(version), "creationTimestamp": "2026-01-01T00:00:00Z"}
    meta["managedFields"] = [{"manager": "kubectl"}]
    return {"metadata": meta, "spec": {}, **more}


def condition(type: str) -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": "True"}]}


def worker(version: int, owner: str, uid: str = "pod") -> dict[str, Any]:
    reference = {"kind": "ElasticJob", "name": "digits", "uid": owner, "controller": True}
    meta = {"namespace": "default", "name": "digits-worker-0", "uid": uid}
    meta |= {"resourceVersion": str(version), "ownerReferences": [reference]}
    return {"metadata": meta, "spec": {"containers": [{"name": "worker"}]}}


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def state(told: list[tuple[str, str]]) -> ClusterState:
    return ClusterState(told.append)


def test_what_is_older_is_ignored(state: ClusterState, told: list[Any]) -> None:
    state.update(job(2))
    state.update(job(1, spec={"suspend": True}))
    assert state.jobs[KEY]["spec"] == {}
    assert told == [KEY]
    assert "managedFields" not in state.jobs[KEY]["metadata"]


def test_a_job_of_the_same_name_is_another_one(state: ClusterState) -> None:
    state.update(job(9, uid="first"))
    state.pods.update(worker(3, "first"))
    state.update(job(4, uid="second"))  # versions of two objects are not compared
    assert state.observe(KEY).pods == ()
    state.delete(job(9, uid="first"))
    assert KEY in state.jobs


def test_an_answer_is_news_of_what_is_there_and_brings_nothing_back(state: ClusterState) -> None:
    state.update(job(1))
    state.update_known(job(2, status=condition("Created")))
    assert state.conditions() == {"Created": 1}
    state.delete(job(2))
    state.update_known(job(3))
    assert state.jobs == {}


def test_every_state_is_counted_also_that_of_no_job(state: ClusterState) -> None:
    state.update(job(name="new"))
    state.update(job(name="odd", status={"state": "Sleeping"}))
    for name in ("a", "b"):
        state.update(job(name=name, status={"state": "Restarting"}))
    state.update(job(name="theirs", spec={"managedBy": "other"}, status={"state": "Running"}))
    assert state.states() == dict.fromkeys(STATES, 0) | {"Pending": 2, "Restarting": 2}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_whatever_is_written_as_the_state_is_one_of_them(kind: str) -> None:
    status = StatusBuilder(job(), 0)
    status.set_condition(kind, True, "Why", "")
    assert status.build()["state"] in STATES


def test_a_list_without_a_job_is_its_end(state: ClusterState, told: list[Any]) -> None:
    state.update(job(1))
    state.update(job(2, name="other"))
    state.update(job(8, name="younger"))
    told.clear()
    state.retain({"uid-other"}, 5)
    assert sorted(name for _, name in state.jobs) == ["other", "younger"]
    assert told == [KEY]


def test_problems_are_passed_on(state: ClusterState) -> None:
    state.update(job())
    problem = Problem("QuotaExceeded", "no more pods")
    assert state.observe(KEY, [problem]).problems == (problem,)


MEETING = {"spec": {"rdzvEndpoint": "etcd:2379", "rdzvId": "mine"}}


class TestRivals:
    def names(self, state: ClusterState, name: str) -> list[str]:
        return [problem.reason for problem in state.observe(("default", name)).problems]

    def test_the_older_one_runs(self, state: ClusterState) -> None:
        state.update(job(name="a", uid="1", **MEETING))
        state.update(job(name="b", uid="2", **MEETING))
        assert (self.names(state, "a"), self.names(state, "b")) == ([], ["RunIdTaken"])

    def test_the_one_that_has_pods_goes_on(self, state: ClusterState) -> None:
        state.update(job(name="a", uid="1", **MEETING))
        state.update(job(name="digits", uid="2", **MEETING))
        state.pods.update(worker(3, "2"))
        assert (self.names(state, "a"), self.names(state, "digits")) == (["RunIdTaken"], [])

    def test_one_that_has_ended_is_none(self, state: ClusterState, told: list[Any]) -> None:
        state.update(job(name="a", uid="1", **MEETING))
        state.update(job(name="b", uid="2", **MEETING))
        told.clear()
        state.update(job(2, name="a", uid="1", status=condition("Failed"), **MEETING))
        assert self.names(state, "b") == []
        assert ("default", "b") in told

    def test_jobs_that_leave_the_id_out_are_none(self, state: ClusterState) -> None:
        for name in "ab":
            state.update(job(name=name, spec={"rdzvEndpoint": "etcd:2379"}))
        assert self.names(state, "a") == self.names(state, "b") == []


# ---------------------------------------------------------------- what belongs to jobs


def service(version: int, address: str = "", name: str = "etcd", **meta: Any) -> dict[str, Any]:
    owner = {"kind": "ElasticJob", "name": "digits", "uid": "job-1", "controller": True}
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}", **meta}
    metadata = {"resourceVersion": str(version), "ownerReferences": [owner], **metadata}
    return {"metadata": metadata, "address": address}


@pytest.fixture
def cache(told: list[tuple[str, str]]) -> InformerCache[str]:
    return InformerCache(lambda item: str(item["address"]), told.append)


def test_what_is_learned_is_there(cache: InformerCache[str], told: list[Any]) -> None:
    cache.update(service(1, "here"))
    assert cache.owned_by(KEY, "job-1") == {"etcd": "here"}
    assert cache.owned_by(KEY, "job-2") == {}, "an earlier job of the name is another one"
    cache.update(service(2, "here"))
    cache.update(service(3, "theirs", "theirs", ownerReferences=[]))
    assert told == [KEY], "nothing that matters has changed"


def test_an_older_object_of_a_job_is_ignored(cache: InformerCache[str]) -> None:
    cache.update(service(10, "new"))
    cache.update(service(9, "old"))
    assert cache.owned_by(KEY, "job-1") == {"etcd": "new"}


def test_what_was_deleted_does_not_come_back_late(
    cache: InformerCache[str], told: list[Any]
) -> None:
    cache.delete(service(3, "here"))
    cache.update(service(1, "here"))  # the answer to our request to make it
    assert cache.owned_by(KEY, "job-1") == {}


def test_the_end_of_one_is_not_the_end_of_its_successor(cache: InformerCache[str]) -> None:
    cache.update(service(5, "second", uid="uid-2"))
    cache.delete(service(4, "first", uid="uid-1"))
    assert cache.owned_by(KEY, "job-1") == {"etcd": "second"}


def test_a_new_list_is_all_there_is(cache: InformerCache[str], told: list[Any]) -> None:
    cache.update(service(1, "here"))
    cache.update(service(2, "there", name="workers"))
    told.clear()

    listed = [service(2, "there", name="workers"), service(7, "new", name="third")]
    for item in listed:
        cache.update(item)
    cache.retain({item["metadata"]["uid"] for item in listed}, 7)

    assert cache.owned_by(KEY, "job-1") == {"third": "new", "workers": "there"}
    assert told == [KEY, KEY]  # one went, one came; what stayed is not told


def test_what_was_made_after_a_list_is_kept(cache: InformerCache[str]) -> None:
    cache.update(service(8, "made by us"))
    cache.retain(set(), 7)
    assert cache.owned_by(KEY, "job-1") == {"etcd": "made by us"}
