"""What is to be done about one ElasticJob now: a pure function of what is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.controller.model import Plan

if TYPE_CHECKING:
    from elastic_runtime.controller.model import Json, Observed


def decide(job: Json, observed: Observed, now: float) -> Plan:
    """Decides.

    Args:
        job: the ElasticJob as the API server has it: ``metadata``, ``spec``, ``status``.
        observed: its pods and what else belongs to it.
        now: seconds since 1970.

    Returns:
        The actions, the whole status, events and when to ask again. An invalid spec is no error:
        it becomes a condition and an event.
    """
    raise NotImplementedError
