"""What is remembered of objects, whichever way and in whatever order it is learned."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.informer_cache import InformerCache

JOB = ("default", "digits")


def service(version: int, address: str = "", name: str = "etcd", **meta: Any) -> dict[str, Any]:
    owner = {"kind": "ElasticJob", "name": "digits", "uid": "job-1", "controller": True}
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "ownerReferences": [owner],
        **meta,
    }
    return {"metadata": metadata, "address": address}


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def cache(told: list[tuple[str, str]]) -> InformerCache[str]:
    return InformerCache(lambda item: str(item["address"]), told.append)


def test_what_is_learned_is_there(cache: InformerCache[str], told: list[Any]) -> None:
    cache.update(service(1, "here"))
    assert cache.owned_by(JOB, "job-1") == {"etcd": "here"}
    assert told == [JOB]


def test_an_earlier_job_of_the_name_is_another(cache: InformerCache[str]) -> None:
    cache.update(service(1, "here"))
    assert cache.owned_by(JOB, "job-2") == {}


def test_what_changes_nothing_that_matters_is_not_told(
    cache: InformerCache[str], told: list[Any]
) -> None:
    cache.update(service(1, "here"))
    cache.update(service(2, "here"))
    assert told == [JOB]


def test_what_is_older_is_ignored(cache: InformerCache[str]) -> None:
    cache.update(service(10, "new"))
    cache.update(service(9, "old"))
    assert cache.owned_by(JOB, "job-1") == {"etcd": "new"}


def test_what_was_deleted_does_not_come_back_late(
    cache: InformerCache[str], told: list[Any]
) -> None:
    cache.delete(service(3, "here"))
    cache.update(service(1, "here"))  # the answer to our request to make it
    assert cache.owned_by(JOB, "job-1") == {}


def test_the_end_of_one_is_not_the_end_of_its_successor(cache: InformerCache[str]) -> None:
    cache.update(service(5, "second", uid="uid-2"))
    cache.delete(service(4, "first", uid="uid-1"))
    assert cache.owned_by(JOB, "job-1") == {"etcd": "second"}


def test_a_new_list_is_all_there_is(cache: InformerCache[str], told: list[Any]) -> None:
    cache.update(service(1, "here"))
    cache.update(service(2, "there", name="workers"))
    told.clear()

    listed = [service(2, "there", name="workers"), service(7, "new", name="third")]
    for item in listed:
        cache.update(item)
    cache.retain({item["metadata"]["uid"] for item in listed}, 7)

    assert cache.owned_by(JOB, "job-1") == {"third": "new", "workers": "there"}
    assert told == [JOB, JOB]  # one went, one came; what stayed is not told


def test_what_was_made_after_a_list_is_kept(cache: InformerCache[str]) -> None:
    cache.update(service(8, "made by us"))
    cache.retain(set(), 7)
    assert cache.owned_by(JOB, "job-1") == {"etcd": "made by us"}


def test_what_no_job_owns_is_not_kept(cache: InformerCache[str], told: list[Any]) -> None:
    cache.update(service(1, "here", ownerReferences=[]))
    assert told == []
