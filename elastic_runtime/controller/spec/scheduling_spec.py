"""``spec.scheduling``: in which queue a job's pods wait, and which of them come together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.spec.field_reader import InvalidSpec

if TYPE_CHECKING:
    from elastic_runtime.controller.spec.field_reader import Section

COSCHEDULING, VOLCANO, KAI, NATIVE = "coscheduling", "volcano", "kai", "native"
GANGS = (COSCHEDULING, VOLCANO, KAI, NATIVE)
# These schedulers have queues of their own; with others a queue is one of Kueue.
_WITH_QUEUES = (VOLCANO, KAI)
# Queues and classes are objects, and their names are values of labels.
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How a job's pods are to be admitted and placed.

    Attributes:
        queue: a LocalQueue of Kueue, or a queue of Volcano or KAI if ``gang`` is one of these; "":
            none.
        priority_class: a WorkloadPriorityClass of Kueue for the first ``minReplicas`` pods; "":
            Kueue's own choice.
        surplus_priority_class: that of the others; "": the same.
        gang: whose PodGroup the pods belong to; "": none is made.
    """

    queue: str = ""
    priority_class: str = ""
    surplus_priority_class: str = ""
    gang: str = ""

    @property
    def kueue(self) -> bool:
        """Whether pods wait for quota of Kueue."""
        return bool(self.queue) and self.gang not in _WITH_QUEUES


def ignored_queue(metadata: Mapping[str, Any], scheduling: Scheduling) -> InvalidSpec | None:
    """What is wrong with a job that names its queue as other kinds of jobs do; None if nothing.

    Args:
        metadata: of the job.
        scheduling: as its spec has it.
    """
    labels = metadata.get("labels")
    queue = labels.get(_QUEUE_LABEL) if isinstance(labels, Mapping) else None
    if not queue or queue == scheduling.queue:
        return None
    why = "it has no effect on an ElasticJob, whose pods need no quota then: say it in"
    return InvalidSpec(f"metadata.labels[{_QUEUE_LABEL}]", f"{why} spec.scheduling.queue")


def read_scheduling(spec: Section) -> Scheduling:
    """Reads ``spec.scheduling``.

    Args:
        spec: the whole spec.

    Raises:
        InvalidSpec: it asks for what cannot be done.
    """
    section = spec.section("scheduling", needed=False)
    fields = ("queue", "priorityClass", "surplusPriorityClass")
    queue, first, surplus = (section.text(name) for name in fields)
    for name, text in zip(fields, (queue, first, surplus), strict=True):
        if not text and section.values.get(name) is not None:
            raise InvalidSpec(f"{section.path}.{name}", "it is empty: name one, or leave it out")
        if text and not _NAME.fullmatch(text):
            why = f"{text!r} is not the name of an object: small letters, digits, dashes and dots"
            raise InvalidSpec(f"{section.path}.{name}", why)
    read = Scheduling(queue, first, surplus, section.choice("gang", GANGS, ""))
    for name, text in zip(fields[1:], (first, surplus), strict=True):
        if text and read.gang in _WITH_QUEUES:
            why = f"it is a class of Kueue, and {read.gang} knows none: use spec.priorityClassName"
            raise InvalidSpec(f"{section.path}.{name}", why)
        if text and not read.kueue:
            why = "it is a class of Kueue, and the job waits in no queue: name one in queue"
            raise InvalidSpec(f"{section.path}.{name}", why)
    return read
