"""The PodGroups of gang schedulers, as their definitions allow them.

The fields, types and bounds are those of the definitions; nothing else is taken from there:
scheduler-plugins at 903da7d (``scheduling.x-k8s.io_podgroups.yaml``), Volcano at 096235e
(``scheduling.volcano.sh_podgroups.yaml``), KAI at 72de64f (``scheduling.run.ai_podgroups.yaml``),
and Kubernetes 1.37's ``scheduling/v1beta1`` types at 01d0b72. Names that a definition does not
have are refused, as by strict validation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema

from tests.kube.kinds import Kind
from tests.kube.store import Refusal

if TYPE_CHECKING:
    from tests.kube.store import Object

_COUNT = {"type": "integer", "minimum": 1}
_INT, _TEXT = {"type": "integer"}, {"type": "string"}
_AMOUNTS = {"type": "object", "additionalProperties": {"type": ["integer", "string"]}}

COSCHEDULING = Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
VOLCANO = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
KAI_BEFORE = Kind("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
KAI = Kind("scheduling.kai.nvidia.com", "v2alpha2", "podgroups", "PodGroup")
NATIVE = Kind("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")


def _fields(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "additionalProperties": False}


_KAI = _fields(
    backoffLimit=_INT,
    completions=_INT,
    markUnschedulable={"type": "boolean"},
    minMember=_COUNT,
    parallelism=_INT,
    preemptibility={"enum": ["preemptible", "non-preemptible", "semi-preemptible"]},
    priorityClassName=_TEXT,
    queue=_TEXT,
    schedulingBackoff=_INT,
    subGroups={"type": "array"},
    topologyConstraint={"type": "object"},
)
_ONE_POLICY = {"minProperties": 1, "maxProperties": 1}
SCHEMAS: dict[Kind, dict[str, Any]] = {
    COSCHEDULING: _fields(minMember=_COUNT, minResources=_AMOUNTS, scheduleTimeoutSeconds=_INT),
    VOLCANO: _fields(
        minMember=_INT,
        minResources=_AMOUNTS,
        minTaskMember={"type": "object", "additionalProperties": _INT},
        networkTopology={"type": "object"},
        priorityClassName=_TEXT,
        queue=_TEXT,
        preemptable={"type": "boolean"},
    ),
    KAI_BEFORE: _KAI,
    KAI: _KAI,
    NATIVE: {
        **_fields(
            schedulingPolicy={
                **_fields(basic=_fields(), gang=_fields(minCount=_COUNT)),
                **_ONE_POLICY,
            },
            workloadRef={"type": "object"},
            priorityClassName=_TEXT,
            disruptionMode={"type": "object"},
        ),
        "required": ["schedulingPolicy"],
    },
}


def check_pod_group(kind: Kind, item: Object) -> Object:
    """A webhook that refuses what a PodGroup's definition does not allow.

    Raises:
        Refusal: as the API server would.
    """
    if kind in SCHEMAS:
        try:
            jsonschema.validate(item["spec"], SCHEMAS[kind])
        except jsonschema.ValidationError as error:
            name = item["metadata"].get("name")
            said = f'PodGroup.{kind.group} "{name}" is invalid: {error.message}'
            raise Refusal(422, "Invalid", said) from None
    return item
