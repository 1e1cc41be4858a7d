"""Merges what a user says of a pod into a pod that is there: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The lists whose objects have names of their own; a volume has one source, so that another one
# takes its place as a whole.
_MERGED_BY_NAME = ("containers", "initContainers", "env")
_REPLACED_BY_NAME = ("volumes", "imagePullSecrets")


def merge_pod(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A pod, or a part of one, with what was given on top.

    Objects are merged field by field. Containers and variables are merged by name; a volume takes
    the place of the one of its name; what is new comes last, and null leaves such a list as
    it is. Every other list (ports, mounts, tolerations), and every value, takes the place of what
    was there. Any other value that is null is removed.

    Args:
        base: what is there; it is left as it is.
        given: what is said.
    """
    merged = dict(base)
    for name, value in given.items():
        old = base.get(name)
        if _is_list_of_named(name, old) and _is_list_of_named(name, value):
            merged[name] = _by_name(old or [], value or [], name in _MERGED_BY_NAME)
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[name] = merge_pod(old, value)
        else:
            merged[name] = value
    return merged


def _is_list_of_named(name: str, value: Any) -> bool:
    """Whether a field has, or would have, objects that are told apart by their names."""
    known = name in (*_MERGED_BY_NAME, *_REPLACED_BY_NAME)
    return known and (value is None or isinstance(value, list))


def _by_name(old: list[Any], new: list[Any], merging: bool) -> list[Any]:
    """Both lists: what is new takes the place of what has its name; what has none comes last."""
    if not all(isinstance(item, Mapping) for item in (*old, *new)):
        return new
    found = list(old)
    places = {str(item.get("name")): place for place, item in enumerate(old)}
    for item in new:
        place = places.get(str(item["name"])) if item.get("name") else None
        before = found[place] if place is not None and merging else {}
        made = merge_pod(before, item)
        if place is None:
            found.append(made)
        else:
            found[place] = made
    return found
