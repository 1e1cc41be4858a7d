"""Changes of objects as the API server makes them: the three kinds of patch, and selectors."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]


class BadPatch(Exception):
    """A patch that does not fit the object."""


def merged(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def without_primitives(target: Any, patch: Any) -> tuple[Any, Any]:
    """Does what a strategic merge patch says with ``$deleteFromPrimitiveList``.

    Returns:
        The object after it, and the patch without it.
    """
    if not isinstance(target, dict) or not isinstance(patch, dict):
        return target, patch
    result, rest = dict(target), {}
    for key, value in patch.items():
        name = key.removeprefix("$deleteFromPrimitiveList/")
        if name != key:
            result[name] = [one for one in result.get(name) or () if one not in value]
        elif isinstance(value, dict) and key in result:
            result[key], rest[key] = without_primitives(result[key], value)
        else:
            rest[key] = value
    return result, rest


def applied(live: Object, wanted: Object, before: Object) -> Object:
    """Server-side apply by one manager: what it said before and says no more is taken away.

    Lists are replaced as a whole; the real server merges some of them by key.
    """
    return merged(_without(live, before, wanted), wanted)  # type: ignore[no-any-return]


def _without(live: Any, before: Any, wanted: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(before, dict):
        return live
    result = dict(live)
    for key, value in before.items():
        if key not in result:
            continue
        if not isinstance(wanted, dict) or key not in wanted:
            left = _without(result[key], value, {}) if isinstance(value, dict) else None
            if left:
                result[key] = left
            else:
                del result[key]
        else:
            result[key] = _without(result[key], value, wanted[key])
    return result


def operated(target: Object, operations: list[Object]) -> Object:
    """JSON patch (RFC 6902): ``add``, ``replace``, ``remove`` and ``test``."""
    result = copy.deepcopy(target)
    for operation in operations:
        _operate(result, operation)
    return result


def _operate(document: Any, operation: Object) -> None:
    parts = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    if not parts:
        raise BadPatch("the whole object cannot be patched")
    holder = document
    for part in parts[:-1]:
        holder = _below(holder, part)
    last: Any = parts[-1]
    verb = operation["op"]
    if isinstance(holder, list):
        last = len(holder) if last == "-" else int(last)
        if verb == "add":
            holder.insert(last, operation["value"])
            return
    if verb == "test" and _below(holder, parts[-1]) != operation["value"]:
        raise BadPatch(f"{operation['path']} is not {operation['value']!r}")
    if verb == "replace":
        _below(holder, parts[-1])
    if verb in ("add", "replace"):
        holder[last] = operation["value"]
    elif verb == "remove":
        _below(holder, parts[-1])
        del holder[last]


def _below(holder: Any, part: str) -> Any:
    try:
        return holder[int(part)] if isinstance(holder, list) else holder[part]
    except (KeyError, IndexError, ValueError, TypeError):
        raise BadPatch(f"there is no {part!r}") from None


def selected(labels: dict[str, str], selector: str) -> bool:
    """Whether labels fit a label selector (``a=b``, ``a!=b``, ``a``, ``!a``, ``a in (b,c)``)."""
    return all(_fits(labels, one) for one in _requirements(selector))


def _requirements(selector: str) -> list[str]:
    found, depth, start = [], 0, 0
    for place, letter in enumerate(selector):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(selector[start:place])
            start = place + 1
    return [one.strip() for one in (*found, selector[start:]) if one.strip()]


def _fits(labels: dict[str, str], requirement: str) -> bool:
    for word, inside in ((" notin ", False), (" in ", True)):
        if word in requirement:
            key, _, values = requirement.partition(word)
            among = {value.strip() for value in values.strip().strip("()").split(",")}
            return (labels.get(key.strip()) in among) is inside
    for sign, same in (("!=", False), ("==", True), ("=", True)):
        if sign in requirement:
            key, _, value = requirement.partition(sign)
            return (labels.get(key.strip()) == value.strip()) is same
    if requirement.startswith("!"):
        return requirement[1:].strip() not in labels
    return requirement in labels


def chosen(item: Object, selector: str) -> bool:
    """Whether an object fits a field selector (``metadata.name=x,status.phase!=y``)."""
    for one in filter(None, selector.split(",")):
        path, unequal, value = one.partition("!=")
        if not unequal:
            path, _, value = one.partition("=")
        found: Any = item
        for part in path.strip().split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (str(found) == value.strip("= ")) is bool(unequal):
            return False
    return True
