"""Merges what a user says of a pod into a pod that is there: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_pod(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A pod, or a part of one, with what was given on top.

    Objects are merged field by field. Lists of objects with names (containers, volumes, variables)
    are merged by name, and what is new comes last; every other list, and every value, takes the
    place of what was there. A field that is null is removed. This is what a strategic merge patch
    of Kubernetes does with the fields that people set; lists that have another key there (ports,
    mounts, tolerations) are replaced as a whole.

    Args:
        base: what is there; it is left as it is.
        given: what is said.
    """
    merged = dict(base)
    for name, value in given.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(base.get(name), value)
    return merged


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge_pod(old, new)
    if _is_named(old) and _is_named(new):
        return _by_name(old, new)
    return new


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and "name" in item for item in value
    )


def _by_name(old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> list[Any]:
    named = {item["name"]: dict(item) for item in old}
    for item in new:
        named[item["name"]] = merge_pod(named.get(item["name"], {}), item)
    return list(named.values())
