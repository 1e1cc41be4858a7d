"""Pod templates as users write them: what the controller itself reads of them, and amounts.

The rest is the API server's to check (``rollout.check_template`` asks it to). Of an amount that it
cannot read it does not say where it stands; so they are read here.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.spec.field_reader import InvalidSpec, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.controller.spec.field_reader import Json

ETCD_CONTAINER = "etcd"
_OF_TEMPLATES = ("metadata", "spec", "apiVersion", "kind")

# Kubernetes' "Quantity": https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity
_AMOUNT = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?"
)


def read_template(worker: Section) -> Json:
    """Checks the template of workers.

    Args:
        worker: ``spec.replicaSpecs.Worker``.

    Raises:
        InvalidSpec: no pod can be made of it.
    """
    template = worker.section("template")
    pod = template.section("spec")
    path = f"{pod.path}.containers"
    if not pod.items("containers"):
        raise InvalidSpec(path, "the template needs a container")
    for each in _containers(pod, "containers"):
        if not each.text("name"):
            raise InvalidSpec(f"{each.path}.name", "a container needs a name")
        if not each.text("image"):
            raise InvalidSpec(f"{each.path}.image", "a container needs an image")
    _check_pod(template, pod)
    return template.values


def read_etcd_template(template: Section) -> None:
    """Checks what is to be merged into the pod of a job's etcd.

    Args:
        template: ``spec.etcd.template``.

    Raises:
        InvalidSpec: nothing can be made of it.
    """
    for name in template.values:
        if name not in _OF_TEMPLATES:
            why = f"a template has {', '.join(_OF_TEMPLATES)}; fields of pods belong under spec"
            raise InvalidSpec(f"{template.path}.{name}", why)
    pod = template.section("spec", needed=False)
    for each in _containers(pod, "containers"):
        name = each.text("name")
        if not name or (name != ETCD_CONTAINER and not each.text("image")):
            raise InvalidSpec(
                f"{each.path}.name",
                f"etcd runs in the container {ETCD_CONTAINER!r}; another one needs a name and an "
                "image",
            )
    _check_pod(template, pod)


def _check_pod(template: Section, pod: Section) -> None:
    list(_named(pod, "imagePullSecrets"))
    _containers(pod, "initContainers")
    for volume in _named(pod, "volumes"):
        empty = volume.section("emptyDir", needed=False)
        _check_amount(empty.values.get("sizeLimit"), f"{empty.path}.sizeLimit")
    pod.whole("terminationGracePeriodSeconds")
    metadata = template.section("metadata", needed=False)
    for of_texts in ("labels", "annotations"):
        metadata.section(of_texts, needed=False)


def _containers(pod: Section, kind: str) -> list[Section]:
    found = list(_named(pod, kind))
    for each in found:
        for of_strings in ("args", "command"):
            each.items(of_strings)
        for of_objects in ("env", "volumeMounts"):
            list(_named(each, of_objects))
        resources = each.section("resources", needed=False)
        for part in ("requests", "limits"):
            amounts = resources.section(part, needed=False)
            for name, amount in amounts.values.items():
                _check_amount(amount, f"{amounts.path}.{name}")
    return found


def _check_amount(amount: Any, path: str) -> None:
    if isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount):
        return
    if amount is not None and not (isinstance(amount, str) and _AMOUNT.fullmatch(amount)):
        raise InvalidSpec(path, f"{amount!r} is no amount: write 500m, 2, 512Mi or 8Gi")


def _named(section: Section, name: str) -> Iterator[Section]:
    """The objects of a list, each of which may have a name."""
    for place, item in enumerate(section.items(name)):
        each = Section.checked(item, f"{section.path}.{name}[{place}]")
        each.text("name")
        yield each
