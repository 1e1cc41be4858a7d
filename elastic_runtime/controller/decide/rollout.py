"""What becomes of pods when what they are made from changes: the check, and the rollout.

The API server creates a pod whose template has a misspelt field, and drops the field. So it is
asked to check each new template strictly, once, before anything is made from it.

With ``spec.rollout: OnRecreate`` pods that run keep the template that they were made from. With
``Rolling`` they are replaced one after the other, the highest index first: each leaves as for a
drain, and the next one follows when its successor trains. No step is lost where the script can go
on without a pod, and never fewer than ``minReplicas`` run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_runtime.controller.decide import manifests
from elastic_runtime.controller.decide.job_types import CheckPod, DeletePod, Problem
from elastic_runtime.controller.decide.status_builder import OUTDATED, PodSlot, Roll
from elastic_runtime.controller.spec.job_spec import ROLLING, TEMPLATE
from elastic_runtime.limits import SHORT_POD_LIFE

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Json, PodView
    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.spec.job_spec import JobSpec

REFUSED = "TemplateRefused"

# A dry run reaches nobody, but an endpoint must look like one.
_NOWHERE = "etcd:2379"
# What the API server begins with, and how it names fields of a pod: 'unknown field
# "spec.containers[0].arg"', 'spec.containers[0].env[1].name: Required value', and 'Go struct field
# EnvVar.spec.containers.env.value of type string'.
_PREAMBLE = re.compile(
    r'^(?:Pod in version "\w+" cannot be handled as a Pod: (?:strict decoding error: )?'
    r'|Pod "[^"]*" is invalid: )'
)
_FIELD = re.compile(
    r'(?:unknown|duplicate) field "([^"]+)"'
    r'|(?:^|[ \[])((?:spec|metadata)\.[\w.\[\]/"-]*): '
    r"|Go struct field \w*\.((?:spec|metadata)\.[\w.]+)"
)


def check_pod(spec: JobSpec, attempt: int = 0, endpoint: str = "") -> Json:
    """The pod by which a template is checked, under a name that no pod has.

    Args:
        spec: the job.
        attempt: which start of the whole job it would be for.
        endpoint: where its workers would meet.
    """
    bounds = spec.minimum, spec.maximum
    manifest = manifests.worker_pod(spec, 0, attempt, endpoint or _NOWHERE, bounds)
    metadata = {**manifest["metadata"], "name": f"{spec.name}-worker-check"}
    return {**manifest, "metadata": metadata}


def refusal(said: str) -> Problem:
    """What is wrong with a pod, by the field of the template that it comes from.

    Args:
        said: by the API server.
    """
    said = _PREAMBLE.sub("", said)
    found = _FIELD.search(said)
    field = f"{TEMPLATE}.{found[found.lastindex or 0]}" if found else TEMPLATE
    return Problem(REFUSED, f"the API server refuses a pod of this template: {said}", field)


def check_template(context: PlanContext) -> None:
    """Has a template checked that was not checked yet.

    A new job waits for the answer with all that it needs. A job that has begun needs its etcd and
    its Services more than the check.
    """
    spec, memory = context.spec, context.status.memory
    mark = f"{manifests.template_mark(spec)}-{manifests.settings_mark(spec)}"
    if memory.checked == mark:
        return
    manifest = check_pod(spec, context.status.attempt, context.endpoint)
    check = CheckPod(manifest, "the template is new")
    place = len(context.actions) if context.observed.pods else 0
    context.actions.insert(place, check)
    if any(problem.reason == REFUSED for problem in context.observed.problems):
        return  # it was refused just now; the next look asks again
    if memory.checked and context.outdated:
        context.status.add_event("TemplateChanged", _meaning_of_change(context))
    memory.checked = mark


def _meaning_of_change(context: PlanContext) -> str:
    if context.spec.rollout == ROLLING:
        return "pods are replaced one after the other (spec.rollout is Rolling)"
    return (
        "pods that run keep the template that they were made from until they are replaced "
        "(spec.rollout is OnRecreate)"
    )


def roll_out(context: PlanContext) -> None:
    """Replaces one pod of an older template, if the spec asks for it and all is well."""
    old, status = context.outdated, context.status
    status.values["updatedReplicas"] = len(context.running) - len(old)
    if not old:
        if any(pod.deleting and not context.is_current(pod) for pod in context.pods):
            return  # the last one is leaving
        status.memory.roll = None
        status.set_condition(OUTDATED, False, "UpToDate", "all pods have the present template")
        return
    reason, why = _why_not_now(context)
    if not reason:
        _replace(context, old[-1])
    text = f"{len(old)} of {len(context.running)} pods run with an older template; "
    status.set_condition(OUTDATED, True, reason or "Rolling", text + why)


def _why_not_now(context: PlanContext) -> tuple[str, str]:
    """Why no pod is replaced now, and in words what happens; the first is "" if one is."""
    spec, status = context.spec, context.status
    if spec.rollout != ROLLING:
        return "OnRecreate", "they keep it until they are replaced (spec.rollout is OnRecreate)"
    if any(problem.reason == REFUSED for problem in context.observed.problems):
        return REFUSED, "the present template is refused"
    one_by_one = "they are replaced one after the other"
    if not _is_settled(context):
        return "Rolling", f"{one_by_one}; the next one when all pods train"
    if len(context.running) <= context.least:
        advice = "raise replicas, or suspend and resume the job (it goes on from its checkpoint)"
        least = f"to replace one would leave fewer than minReplicas ({context.least})"
        return "AtMinimum", f"{least}: {advice}"
    if status.memory.done:
        return "Ending", "training is done"
    return "", one_by_one


def _is_settled(context: PlanContext) -> bool:
    """Whether all pods that are asked for are there, and train, the one replaced last included."""
    if len(context.running) < context.wanted or len(context.observed.pods) > context.wanted:
        return False
    report, roll = context.report, context.status.memory.roll
    if report is None or not report.round:
        youngest = max(pod.started_at for pod in context.running)
        context.wake_at(youngest + SHORT_POD_LIFE)
        # Agents that report are asked within this time; others are believed to train by then.
        return youngest + SHORT_POD_LIFE <= context.now
    if roll is None:
        return report.ready
    # The round that it has left is not the one that its successor is in.
    return report.ready and report.round > roll.round and report.nodes >= roll.nodes


def _replace(context: PlanContext, pod: PodView) -> None:
    report, memory = context.report, context.status.memory
    memory.roll = Roll(report.round, report.nodes) if report else None
    memory.slots[pod.index] = PodSlot(pod.uid)  # nothing that is counted, or waited after
    why = "it is replaced by one with the present template"
    context.actions.append(DeletePod(pod.name, pod.uid, None, why))
    context.status.add_event("Rolling", f"{pod.name}: {why}")
