"""What the controller knows of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.cluster_state import World
from elastic_runtime.controller.decide.job_types import Problem

KEY = ("default", "digits")


def job(version: int = 1, name: str = "digits", uid: str = "", **more: Any) -> dict[str, Any]:
    meta = {
        "namespace": "default",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    return {"metadata": meta, "spec": {}, **more}


def condition(type: str) -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": "True"}]}


def worker(version: int, owner: str, uid: str = "pod") -> dict[str, Any]:
    reference = {"kind": "ElasticJob", "name": "digits", "uid": owner, "controller": True}
    meta = {
        "namespace": "default",
        "name": "digits-worker-0",
        "uid": uid,
        "resourceVersion": str(version),
        "ownerReferences": [reference],
    }
    return {"metadata": meta, "spec": {"containers": [{"name": "worker"}]}}


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def world(told: list[tuple[str, str]]) -> World:
    return World(told.append)


def test_what_is_older_is_ignored(world: World, told: list[Any]) -> None:
    world.learned(job(2))
    world.learned(job(1, spec={"suspend": True}))
    assert world.jobs[KEY]["spec"] == {}
    assert told == [KEY]


def test_a_job_of_the_same_name_is_another_one(world: World) -> None:
    world.learned(job(9, uid="first"))
    world.pods.learned(worker(3, "first"))
    world.learned(job(4, uid="second"))  # versions of two objects are not compared
    assert world.observe(KEY).pods == ()
    world.lost(KEY, "first")
    assert KEY in world.jobs


def test_an_answer_does_not_bring_back_what_has_gone(world: World) -> None:
    world.learned(job(1))
    world.lost(KEY, "uid-digits")
    world.answered(job(2))
    assert world.jobs == {}


def test_an_answer_is_news_of_what_is_there(world: World) -> None:
    world.learned(job(1))
    world.answered(job(2, status=condition("Created")))
    assert world.conditions() == {"Created": 1}


def test_who_wrote_what_is_not_kept(world: World) -> None:
    world.learned(job())
    assert "managedFields" not in world.jobs[KEY]["metadata"]


def test_problems_are_passed_on(world: World) -> None:
    world.learned(job())
    problem = Problem("QuotaExceeded", "no more pods")
    assert world.observe(KEY, [problem]).problems == (problem,)


MEETING = {"spec": {"rdzvEndpoint": "etcd:2379", "rdzvId": "mine"}}


class TestRivals:
    def names(self, world: World, name: str) -> list[str]:
        return [problem.reason for problem in world.observe(("default", name)).problems]

    def test_the_older_one_runs(self, world: World) -> None:
        world.learned(job(name="a", uid="1", **MEETING))
        world.learned(job(name="b", uid="2", **MEETING))
        assert (self.names(world, "a"), self.names(world, "b")) == ([], ["RunIdTaken"])

    def test_the_one_that_has_pods_goes_on(self, world: World) -> None:
        world.learned(job(name="a", uid="1", **MEETING))
        world.learned(job(name="digits", uid="2", **MEETING))
        world.pods.learned(worker(3, "2"))
        assert (self.names(world, "a"), self.names(world, "digits")) == (["RunIdTaken"], [])

    def test_one_that_has_ended_is_none(self, world: World, told: list[Any]) -> None:
        world.learned(job(name="a", uid="1", **MEETING))
        world.learned(job(name="b", uid="2", **MEETING))
        told.clear()
        world.learned(job(2, name="a", uid="1", status=condition("Failed"), **MEETING))
        assert self.names(world, "b") == []
        assert ("default", "b") in told

    def test_jobs_that_leave_the_id_out_are_none(self, world: World) -> None:
        for name in "ab":
            world.learned(job(name=name, spec={"rdzvEndpoint": "etcd:2379"}))
        assert self.names(world, "a") == self.names(world, "b") == []
