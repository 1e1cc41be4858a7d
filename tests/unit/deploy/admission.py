"""What an API server does with an object of a custom resource, without one.

In its order: defaults are filled in, fields that the schema does not know are refused (as for
``kubectl apply``, which asks for strict validation), values are checked, and then the rules in CEL.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import celpy
from celpy.adapter import json_to_cel
from jsonschema import Draft202012Validator, FormatChecker

from tests.unit.deploy.files import DEPLOY, Object, objects

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

OPEN = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"
RULES = "x-kubernetes-validations"

_FORMATS = FormatChecker(formats=["date-time"])
for _name, _bits in (("int32", 31), ("int64", 63)):

    @_FORMATS.checks(_name)
    def _fits(value: object, most: int = 2**_bits) -> bool:
        return not isinstance(value, int) or -most <= value < most


@dataclass(frozen=True)
class Refusal:
    """Why an object is not let in."""

    field: str
    why: str


@dataclass(frozen=True)
class Resource:
    """A custom resource, of one version.

    Attributes:
        schema: its structural schema.
    """

    schema: Object

    def completed(self, thing: Object) -> Object:
        """The object with all defaults."""
        return _completed(deepcopy(thing), self.schema)

    def refusals(self, thing: Object, old: Object | None = None) -> list[Refusal]:
        """What is wrong with an object; nothing if it is let in.

        Args:
            thing: the object as the user writes it.
            old: what is there already.
        """
        thing = self.completed(thing)
        wrong = [_of_error(error) for error in self._validator.iter_errors(thing)]
        if wrong:
            return wrong
        return _of_rules(self.schema, thing, None if old is None else self.completed(old), "")

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(_strict(self.schema), format_checker=_FORMATS)


@cache
def elasticjob() -> Resource:
    """The one of ``deploy/crd.yaml``."""
    [crd] = objects(DEPLOY / "crd.yaml")
    [version] = crd["spec"]["versions"]
    return Resource(version["schema"]["openAPIV3Schema"])


def _completed(value: Any, schema: Object) -> Any:
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            if name not in value and "default" in below:
                value[name] = deepcopy(below["default"])
            if name in value:
                value[name] = _completed(value[name], below)
    elif isinstance(value, list):
        value = [_completed(each, schema.get("items", {})) for each in value]
    return value


def _strict(schema: Object, *, root: bool = True) -> Object:
    """The same as JSON schema that refuses unknown fields."""
    plain = {
        key: value
        for key, value in schema.items()
        if not key.startswith("x-") and key not in ("default", "description")
    }
    if schema.get(EITHER):
        plain["type"] = ["integer", "string"]
    if "properties" in schema:
        plain["properties"] = {
            # What else metadata may hold is not the schema's business.
            name: _strict(below, root=False) | ({} if not (root and name == "metadata") else OPENED)
            for name, below in schema["properties"].items()
        }
    if "items" in schema:
        plain["items"] = _strict(schema["items"], root=False)
    if schema.get("type") == "object" and not schema.get(OPEN):
        plain["additionalProperties"] = False
    return plain


OPENED = {"additionalProperties": True}


def _of_error(error: ValidationError) -> Refusal:
    field = ".".join(str(part) for part in error.absolute_path)
    extra: list[str] = []
    if error.validator == "required":
        extra = [name for name in error.validator_value if name not in error.instance][:1]
    elif error.validator == "additionalProperties":
        extra = [name for name in error.instance if name not in error.schema["properties"]][:1]
    return Refusal(".".join(filter(None, [field, *extra])), error.message)


def _of_rules(schema: Object, value: Any, old: Any, field: str) -> list[Refusal]:
    found = []
    for rule in schema.get(RULES, ()):
        of_change = "oldSelf" in rule["rule"]
        if of_change and old is None:
            continue
        known = {"self": json_to_cel(value)} | ({"oldSelf": json_to_cel(old)} if of_change else {})
        if not compiled(rule["rule"]).evaluate(known):
            found.append(Refusal(field + rule.get("fieldPath", ""), rule["message"]))
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            if name in value:
                before = old.get(name) if isinstance(old, dict) else None
                path = f"{field}.{name}" if field else name
                found += _of_rules(below, value[name], before, path)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            found += _of_rules(schema.get("items", {}), each, None, f"{field}.{index}")
    return found


@cache
def compiled(rule: str) -> Any:
    """A rule in CEL, ready to be evaluated."""
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))
