"""What a real API server refuses of a pod with ``fieldValidation=Strict``, and in which words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import kubernetes_validate

from tests.kube.store import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.kube.kinds import Kind
    from tests.kube.store import Object

_VERSION = "1.34"
_UNEXPECTED = re.compile(r"'([^']+)'")


def check_strictly(kind: Kind, item: Object) -> None:
    """Refuses fields that are not known, and values of another type.

    Raises:
        Refusal: as the real server words it.
    """
    whole = {"apiVersion": kind.api_version, "kind": kind.name, **item}
    try:
        kubernetes_validate.validate(whole, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        handled = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
        raise Refusal(400, "BadRequest", handled + _words(error)) from None


def _words(error: Any) -> str:
    path = _path(error.path)
    if error.validator == "additionalProperties":
        names = _UNEXPECTED.findall(error.message)
        said = ", ".join(f'unknown field "{path}.{name}"' for name in names)
        return f"strict decoding error: {said}"
    return f"json: cannot unmarshal into Go struct field .{path}: {error.message}"


def _path(parts: Iterable[Any]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")
