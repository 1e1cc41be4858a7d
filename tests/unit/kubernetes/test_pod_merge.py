"""What becomes of a pod when somebody says something of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from elastic_runtime.kubernetes.pod_merge import merge_pod

Pod = dict[str, Any]


def named(**objects: Pod) -> list[Pod]:
    """A list of objects with names."""
    return [{"name": name, **rest} for name, rest in objects.items()]


DATA = {"name": "data", "emptyDir": {}}
DISK = {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}
LIMITS = {"security": {"user": 1, "limits": {"cpu": "1"}}}
LISTS = {"containers": named(etcd={}), "volumes": [DATA]}
TWICE = [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]

# What there is, what is said of it, and what becomes of it.
CASES: dict[str, tuple[Pod, Pod, Pod]] = {
    "what is not said stays": ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
    "nothing said": (LIMITS, {}, LIMITS),
    "nothing said of an object": (LIMITS, {"security": {}}, LIMITS),
    "nothing said of one in it": (LIMITS, {"security": {"limits": {}}}, LIMITS),
    "objects are merged at any depth": (
        {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"cpu": "1"}}},
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"resources": {"limits": {"memory": "2Gi", "cpu": "1"}, "requests": {"cpu": "1"}}},
    ),
    "objects with names are merged by name, new ones come last": (
        {"containers": named(a={"image": "a:1", "tty": True}, b={"image": "b"})},
        {"containers": named(new={"image": "n"}, a={"image": "a:2"})},
        {
            "containers": named(
                a={"image": "a:2", "tty": True}, b={"image": "b"}, new={"image": "n"}
            )
        },
    ),
    "lists in objects of lists are merged too": (
        {"containers": named(a={"env": named(X={"value": "1"})})},
        {"containers": named(a={"env": named(Y={"value": "2"})})},
        {"containers": named(a={"env": named(X={"value": "1"}, Y={"value": "2"})})},
    ),
    "an empty list adds nothing to objects with names": (LISTS, {"volumes": []}, LISTS),
    "objects with names come where there was nothing": ({}, LISTS, LISTS),
    "objects with names come into an empty list": ({"volumes": []}, LISTS, LISTS),
    "null removes a field": (
        {"a": 1, "b": {"c": 2, "d": 3}},
        {"a": None, "b": {"c": None}},
        {"b": {"d": 3}},
    ),
    "null removes a field of an object with a name": (
        {"volumes": [DATA]},
        {"volumes": [{**DISK, "emptyDir": None}]},
        {"volumes": [DISK]},
    ),
    "null for what is not there": ({"a": 1}, {"b": None}, {"a": 1}),
    "null in an object that is new": (
        {"env": named(y={})},
        {"env": named(x={"b": None})},
        {"env": named(y={}, x={})},
    ),
    "null removes no containers, no volumes": (LISTS, dict.fromkeys(LISTS), LISTS),
    "mounts are replaced, though they have names": (
        {"volumeMounts": TWICE[:1]},
        {"volumeMounts": TWICE},
        {"volumeMounts": TWICE},
    ),
    "ports, too": ({"ports": named(a={})}, {"ports": named(b={})}, {"ports": named(b={})}),
    "a volume has one source": ({"volumes": [DATA]}, {"volumes": [DISK]}, {"volumes": [DISK]}),
    "a selector that is called env": (
        {"nodeSelector": {"env": "a"}},
        {"nodeSelector": {"env": ""}},
        {"nodeSelector": {"env": ""}},
    ),
    "what has no name comes last": (
        {"env": named(a={})},
        {"env": [{"value": "1"}, {"name": "a", "value": "2"}]},
        {"env": [{"name": "a", "value": "2"}, {"value": "1"}]},
    ),
    "a name that is none": (
        {"env": named(a={})},
        {"env": [{"name": ["a"]}]},
        {"env": [{"name": "a"}, {"name": ["a"]}]},
    ),
    "many things at once": (
        {
            "containers": named(a={"resources": {"limits": {"cpu": "1"}}, "args": ["x"]}),
            "labels": {"a": "1", "b": "2"},
            "gone": 1,
        },
        {
            "containers": named(
                a={"resources": {"limits": {"cpu": "2"}}, "args": None}, b={"args": ["y"]}
            ),
            "labels": {"a": None, "c": "3"},
            "gone": None,
        },
        {
            "containers": named(a={"resources": {"limits": {"cpu": "2"}}}, b={"args": ["y"]}),
            "labels": {"b": "2", "c": "3"},
        },
    ),
}


@pytest.mark.parametrize(("base", "given", "merged"), CASES.values(), ids=CASES)
def test_what_is_said_is_merged_into_what_there_is(base: Pod, given: Pod, merged: Pod) -> None:
    before = copy.deepcopy((base, given))
    assert merge_pod(base, given) == merged
    assert (base, given) == before


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("args", ["etcd", "--name=etcd"], ["etcd"]),
        ("args", ["a"], []),
        ("tolerations", [{"key": "a"}], [{"key": "b"}]),
        ("tolerations", named(a={}, b={}), named(b={})),
        ("env", [3], named(a={})),
        ("env", named(a={}), ["a"]),
        ("env", {"a": 1}, "text"),
        ("env", "text", {"a": 1}),
        ("env", named(a={}), {"a": 1}),
        ("env", 1, False),
        ("env", True, 0),
    ],
)
def test_every_other_list_or_value_takes_the_place(field: str, old: object, new: object) -> None:
    merged = merge_pod({field: old}, {field: new})
    assert merged[field] is new
