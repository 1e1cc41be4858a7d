"""What becomes of a pod when somebody says something of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from elastic_runtime.kubernetes.pod_merge import merge_pod


def test_what_is_not_said_stays_and_what_is_new_is_added() -> None:
    assert merge_pod({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": 1, "b": 3, "c": 4}


@pytest.mark.parametrize("given", [{}, {"security": {}}, {"security": {"limits": {}}}])
def test_what_says_nothing_changes_nothing(given: dict[str, Any]) -> None:
    base = {"security": {"user": 1, "limits": {"cpu": "1"}}}
    assert merge_pod(base, given) == base


def test_objects_are_merged_field_by_field_at_any_depth() -> None:
    base = {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"cpu": "1"}}}
    merged = merge_pod(base, {"resources": {"limits": {"memory": "2Gi"}}})
    assert merged == {
        "resources": {"limits": {"memory": "2Gi", "cpu": "1"}, "requests": {"cpu": "1"}}
    }


# ---------------------------------------------------------------- lists


def test_objects_with_names_are_merged_by_name_and_new_ones_come_last() -> None:
    base = {"containers": [{"name": "a", "image": "a:1", "tty": True}, {"name": "b", "image": "b"}]}
    given = {"containers": [{"name": "new", "image": "n"}, {"name": "a", "image": "a:2"}]}
    assert merge_pod(base, given)["containers"] == [
        {"name": "a", "image": "a:2", "tty": True},
        {"name": "b", "image": "b"},
        {"name": "new", "image": "n"},
    ]


def test_lists_in_objects_of_lists_are_merged_too() -> None:
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}
    given = {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}
    (merged,) = merge_pod(base, given)["containers"]
    assert merged["env"] == [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["etcd", "--name=etcd"], ["etcd"]),
        ([{"key": "a", "operator": "Exists"}], [{"key": "b", "operator": "Exists"}]),
        (["a"], []),
        ([{"key": "a"}], []),
    ],
    ids=["texts", "objects without names", "none for texts", "none for objects without names"],
)
def test_every_other_list_is_replaced(old: list[Any], new: list[Any]) -> None:
    assert merge_pod({"list": old}, {"list": new}) == {"list": new}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([{"name": "a"}, {"name": "b"}], [{"image": "c"}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "a"}, {"image": "c"}]),
        ([{"name": "a"}, {"image": "b"}], [{"name": "c"}]),
        ([{"name": "a"}], ["a"]),
    ],
    ids=["given", "one of those given", "there", "no object"],
)
def test_one_item_without_a_name_has_the_list_replaced(old: list[Any], new: list[Any]) -> None:
    assert merge_pod({"list": old}, {"list": new}) == {"list": new}


def test_an_empty_list_adds_nothing_to_objects_with_names() -> None:
    base = {"volumes": [{"name": "data"}]}
    assert merge_pod(base, {"volumes": []}) == base


@pytest.mark.parametrize("base", [{}, {"volumes": []}])
def test_objects_with_names_come_into_a_list_that_was_empty(base: dict[str, Any]) -> None:
    given = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "more"}]}
    assert merge_pod(base, given) == given


# ---------------------------------------------------------------- null, and other types


def test_null_removes_a_field() -> None:
    base = {"a": 1, "b": {"c": 2, "d": 3}}
    assert merge_pod(base, {"a": None, "b": {"c": None}}) == {"b": {"d": 3}}


def test_null_removes_a_field_of_an_object_with_a_name() -> None:
    base = {"volumes": [{"name": "data", "emptyDir": {}}]}
    claim = {"claimName": "disk"}
    given = {"volumes": [{"name": "data", "emptyDir": None, "persistentVolumeClaim": claim}]}
    merged = merge_pod(base, given)
    assert merged == {"volumes": [{"name": "data", "persistentVolumeClaim": claim}]}


def test_null_for_what_is_not_there_adds_nothing() -> None:
    assert merge_pod({"a": 1}, {"b": None}) == {"a": 1}
    given = {"env": [{"name": "x", "b": None}]}
    assert merge_pod({"env": [{"name": "y"}]}, given) == {"env": [{"name": "y"}, {"name": "x"}]}


def test_null_removes_no_list_of_containers_or_volumes() -> None:
    base = {"containers": [{"name": "etcd"}], "volumes": [{"name": "data"}]}
    assert merge_pod(base, {"containers": None, "volumes": None}) == base


def test_mounts_and_ports_are_replaced_though_they_have_names() -> None:
    base = {"volumeMounts": [{"name": "data", "mountPath": "/a"}], "ports": [{"name": "a"}]}
    mounts = [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]
    given = {"volumeMounts": mounts, "ports": [{"name": "b"}]}
    assert merge_pod(base, given) == given


def test_a_volume_has_one_source() -> None:
    base = {"volumes": [{"name": "data", "emptyDir": {}}]}
    given = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]}
    assert merge_pod(base, given) == given


@pytest.mark.parametrize(
    ("old", "new"),
    [({"a": 1}, "text"), ("text", {"a": 1}), ([{"name": "a"}], {"a": 1}), (1, False), (True, 0)],
)
def test_a_value_of_another_type_takes_the_place(old: object, new: object) -> None:
    merged = merge_pod({"field": old}, {"field": new})
    assert merged["field"] is new


# ---------------------------------------------------------------- what is handed in


def test_both_are_left_as_they_are() -> None:
    base = {
        "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}, "args": ["x"]}],
        "labels": {"a": "1", "b": "2"},
        "gone": 1,
    }
    given = {
        "containers": [
            {"name": "a", "resources": {"limits": {"cpu": "2"}}, "args": None},
            {"name": "b", "args": ["y"]},
        ],
        "labels": {"a": None, "c": "3"},
        "gone": None,
    }
    before = copy.deepcopy((base, given))
    merged = merge_pod(base, given)
    assert merged == {
        "containers": [
            {"name": "a", "resources": {"limits": {"cpu": "2"}}},
            {"name": "b", "args": ["y"]},
        ],
        "labels": {"b": "2", "c": "3"},
    }
    assert (base, given) == before


@pytest.mark.parametrize(
    ("base", "given", "merged"),
    [
        (
            {"nodeSelector": {"env": "a"}},
            {"nodeSelector": {"env": ""}},
            {"nodeSelector": {"env": ""}},
        ),
        ({"env": "a"}, {"env": "b"}, {"env": "b"}),
        ({"env": [3]}, {"env": [{"name": "a"}]}, {"env": [{"name": "a"}]}),
        (
            {"env": [{"name": "a"}]},
            {"env": [{"name": ["a"]}]},
            {"env": [{"name": "a"}, {"name": ["a"]}]},
        ),
    ],
)
def test_what_is_no_list_of_objects_with_names_is_none(
    base: dict[str, Any], given: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge_pod(base, given) == merged
