"""The rules for structural schemas, as far as a custom resource of ours can break them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.deploy.admission import EITHER, OPEN, RULES, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.deploy.files import Object

# All that this project has use for; whatever else apiextensions/v1 may allow is looked at when
# somebody needs it.
KNOWN = {
    *("type", "format", "description", "default", "enum", "required", "properties", "items"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"),
    *(OPEN, EITHER, RULES, "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}
OF_RULE = {"rule", "message", "fieldPath"}


def nodes(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Each schema within a schema, with its path, itself first."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def faults(schema: Object) -> list[str]:
    """What an API server would not take in a definition, or would quietly drop."""
    found = []
    for path, node in nodes(schema):
        found += [f"{path}: {fault}" for fault in _of_node(path, node)]
    return found


def _of_node(path: str, node: Object) -> Iterator[str]:
    for keyword in node.keys() - KNOWN:
        yield f"{keyword} is not for structural schemas, or not known here"
    kind = node.get("type")
    if node.get(EITHER):
        if kind:
            yield "a type beside int-or-string"
    elif kind not in TYPES:
        yield f"no type ({kind})"
    if kind == "array" and "items" not in node:
        yield "an array of anything"
    if kind == "object" and not node.get("properties") and not node.get(OPEN):
        if path != ".metadata":
            yield "an object that can hold nothing"
    for name in node.get("required", ()):
        if name not in node.get("properties", {}):
            yield f"{name} is required, and unknown"
    if node.get("x-kubernetes-list-type") == "map":
        for key in node.get("x-kubernetes-list-map-keys", [""]):
            item = node.get("items", {})
            if key not in item.get("required", ()):
                yield f"the key {key!r} of its items may be missing"
    if "default" in node and Resource(node).refusals(node["default"]):
        yield f"the default {node['default']!r} is refused"
    for rule in node.get(RULES, ()):
        yield from _of_rule(node, rule)


def _of_rule(node: Object, rule: Object) -> Iterator[str]:
    if rule.keys() - OF_RULE or not rule.get("message", "").strip():
        yield f"a rule with {sorted(rule)}"
    at: Any = node
    for part in rule.get("fieldPath", "").split(".")[1:]:
        at = at.get("properties", {}).get(part)
        if at is None:
            yield f"there is no field {rule['fieldPath']}"
            return
