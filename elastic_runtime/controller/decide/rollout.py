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
from elastic_runtime.controller.decide.groups.gang_groups import gang_asked_for
from elastic_runtime.controller.decide.job_types import CheckPod, DeletePod, Problem
from elastic_runtime.controller.decide.status_builder import (
    OUTDATED,
    PodSlot,
    Roll,
    StatusBuilder,
)
from elastic_runtime.controller.spec.job_spec import MOST_PODS, ROLLING, TEMPLATE
from elastic_runtime.limits import SHORT_POD_LIFE

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Json, PodView
    from elastic_runtime.controller.decide.plan_context import PlanContext
    from elastic_runtime.controller.spec.job_spec import JobSpec

REFUSED = "TemplateRefused"

_REPLACED = "it is replaced by one with the present template"
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
    gang = gang_asked_for(spec, spec.minimum)
    manifest = manifests.worker_pod(spec, 0, attempt, endpoint or _NOWHERE, bounds, gang=gang)
    metadata = {**manifest["metadata"], "name": f"{spec.name}-worker-check"}
    return {**manifest, "metadata": metadata}


def refusal(said: str) -> Problem:
    """What is wrong with a pod, by the field of the template that it comes from.

    Args:
        said: by the API server.
    """
    said = _PREAMBLE.sub("", said)
    if "schedulingGroup" in said:
        why = "Kubernetes' own PodGroups are not known here, or are off: have them turned on"
        text = f"{why} (scheduling.k8s.io/v1beta1), or leave out gang"
        return Problem("NoGangScheduler", text, "spec.scheduling.gang")
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
    if not memory.checked and any(map(context.is_current, context.pods)):
        memory.checked = mark  # pods were made from it before anybody asked
        return
    if context.observed.checked == mark:
        if memory.checked and context.outdated:
            context.status.add_event("TemplateChanged", _meaning_of_change(context))
        memory.checked = mark
        return
    manifest = check_pod(spec, context.status.attempt, context.endpoint)
    check = CheckPod(manifest, mark, "the template is new")
    # Of a job that has begun: after its etcd and its Services, and before any pod.
    place = len(context.actions) if context.observed.pods else 0
    context.actions.insert(place, check)


def _meaning_of_change(context: PlanContext) -> str:
    if context.spec.rollout == ROLLING:
        return "pods are replaced one after the other (spec.rollout is Rolling)"
    return (
        "pods that run keep the template that they were made from until they are replaced "
        "(spec.rollout is OnRecreate)"
    )


# ---------------------------------------------------------------- one after the other


def roll_out(context: PlanContext) -> None:
    """Replaces one pod of an older template, if the spec asks for it and all is well.

    Which one is written down first, with the round that it is in, and deleted by the next decision:
    what was done and then forgotten would be taken for a fault.
    """
    old, status, memory = context.outdated, context.status, context.status.memory
    status.values["updatedReplicas"] = len(context.running) - len(old)
    if not old:
        if any(pod.deleting and not context.is_current(pod) for pod in context.pods):
            return  # the last one is leaving
        memory.roll = None
        status.set_condition(OUTDATED, False, "UpToDate", "all pods have the present template")
        return
    reason, why = _why_not_now(context)
    chosen = next((pod for pod in old if memory.roll and pod.uid == memory.roll.uid), None)
    if reason:
        if chosen is not None and reason not in _PASSING:
            memory.roll = None  # it was not replaced, and is not to be
            memory.slots.pop(chosen.index, None)
    elif chosen is not None:
        context.actions.append(DeletePod(chosen.name, chosen.uid, None, _REPLACED))
    else:
        _choose(context, old[-1])
    text = f"{len(old)} of {len(context.running)} pods run with an older template; "
    status.set_condition(OUTDATED, True, reason or "Rolling", text + why)


def forget(status: StatusBuilder, reason: str, text: str) -> None:
    """No pod runs, and so none with an older template.

    Args:
        status: of the job.
        reason, text: of the condition.
    """
    status.memory.roll = None
    if "updatedReplicas" in status.values:
        status.values["updatedReplicas"] = 0
    status.set_condition(OUTDATED, False, reason, text)


def take_back(context: PlanContext, pod: PodView) -> None:
    """A pod that was to be replaced has ended by itself before, which is counted as ever.

    Args:
        context: the decision.
        pod: one that has ended.
    """
    roll, memory = context.status.memory.roll, context.status.memory
    if roll and roll.uid == pod.uid and memory.slots.get(pod.index) == PodSlot(pod.uid):
        del memory.slots[pod.index]
        memory.roll = None


def _choose(context: PlanContext, pod: PodView) -> None:
    report, memory = context.report, context.status.memory
    number, nodes = (report.round, report.nodes) if report else (0, 0)
    memory.roll = Roll(pod.uid, pod.index, number, nodes)
    memory.slots[pod.index] = PodSlot(pod.uid)  # nothing that is counted, or waited after
    context.status.add_event("Rolling", f"{pod.name}: {_REPLACED}")
    context.wake_at(context.now)


def _why_not_now(context: PlanContext) -> tuple[str, str]:
    """Why no pod is replaced now, and in words what happens; the first is "" if one is."""
    spec, status = context.spec, context.status
    if spec.rollout != ROLLING:
        return "OnRecreate", "they keep it until they are replaced (spec.rollout is OnRecreate)"
    if not context.template_accepted:
        refused = any(problem.reason == REFUSED for problem in context.observed.problems)
        return REFUSED if refused else "NotChecked", "the present template is not accepted yet"
    if status.memory.done:
        return "Ending", "training is done"
    one_by_one = "they are replaced one after the other"
    awaited = _awaited(context) if context.wanted > context.least else ""
    if awaited:
        return "Rolling", f"{one_by_one}; {awaited}"
    if len(context.running) <= context.least:
        advice = "raise replicas, or suspend and resume the job (it goes on from its checkpoint)"
        least = f"to replace one would leave fewer than minReplicas ({context.least})"
        return "AtMinimum", f"{least}: {advice}"
    return "", one_by_one


# Reasons that may pass by themselves, while a pod that was chosen stays chosen.
_PASSING = ("Rolling",)


def _awaited(context: PlanContext) -> str:
    """What is waited for before the next pod is replaced; "" if nothing is."""
    memory, roll = context.status.memory, context.status.memory.roll
    if any(pod.deleting or context.is_former(pod) for pod in context.observed.pods):
        return "one is leaving"
    running = {pod.index for pod in context.running}
    for index in (index for index in range(context.wanted) if index not in running):
        # Nothing waits for pods above the minimum that cannot exist, but for one's own successor.
        if context.is_left_out(index) and not (roll and index == roll.index):
            continue
        slot = memory.slots.get(index)
        why = f" ({slot.why})" if slot and slot.why else ""
        return f"the next one when {manifests.pod_name(context.spec.name, index)} runs{why}"
    if roll and any(pod.uid == roll.uid for pod in context.running):
        return ""  # it was chosen, and is still to go
    return "" if _all_train(context) else "the next one when all pods train"


def _all_train(context: PlanContext) -> bool:
    """Whether all that run take part, the successor of the last one that was replaced included."""
    report, roll = context.report, context.status.memory.roll
    if report is None and "round" not in context.status.values:
        # Nobody reports, and so nobody can say more than the pods themselves.
        return all(pod.ready for pod in context.running) and _have_run_for_long(context)
    if report is None or not report.ready or not report.round:
        return False
    for_long, full = _have_run_for_long(context), min(len(context.running), context.launch[1])
    if roll is None:
        return report.nodes >= full or for_long
    if not report.nodes:  # an older agent, which does not say how many there are
        return for_long
    # The round that it has left is not the one that its successor is in; a spare was in none, or
    # has taken its place. After a while what is said is no longer of the time before.
    is_new = report.round > roll.round and not context.spec.spares
    return (is_new or for_long) and report.nodes >= min(full, roll.nodes or MOST_PODS)


def _have_run_for_long(context: PlanContext) -> bool:
    youngest = max(pod.started_at for pod in context.running)
    return context.has_passed(SHORT_POD_LIFE, youngest)
