"""Changes of objects as the API server makes them, by patches of three kinds, and selectors."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]


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


def selected(labels: dict[str, str], selector: str) -> bool:
    """Whether labels fit a label selector, of which only ``a=b,c=d`` is known here."""
    return all(labels.get(name) == value for name, value in _equalities(selector))


def chosen(item: Object, selector: str) -> bool:
    """Whether an object fits a field selector, such as ``metadata.name=x,status.phase=y``."""
    for path, value in _equalities(selector):
        found: Any = item
        for part in path.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if str(found) != value:
            return False
    return True


def _equalities(selector: str) -> list[tuple[str, str]]:
    """What a selector asks for.

    Raises:
        ValueError: it asks for something else than equality.
    """
    found = [one.partition("=") for one in selector.split(",") if one]
    if any(name[-1:] in ("", "!") or not sign or value[:1] == "=" for name, sign, value in found):
        raise ValueError(f"this selector is not known here: {selector}")
    return [(name, value) for name, _, value in found]
