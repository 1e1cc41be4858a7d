"""What is to be done about one ElasticJob now: a pure function of what is seen.

The rules:

- What must not be forgotten is written down before anything follows from it: a plan that ends the
  job, or orders another attempt, does nothing else. What follows is decided again from the status.
- A pod that ends is replaced, left, counted or fatal (``pod_failures.py``). One failure of user
  code is one, however many pods it takes with it: the next attempt has other pods and another run
  id.
- Nothing waits for pods above the minimum. What the cluster cannot place stays pending.
- Suspending and scaling down end pods with SIGTERM and their grace; they save and say goodbye.
- The end is final: afterwards pods are cleaned up, and the job itself when its time has come.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
from elastic_runtime.controller.decide import conditions, node_topology, pod_planning, rollout
from elastic_runtime.controller.decide.etcd_manifests import ETCD_IMAGE
from elastic_runtime.controller.decide.groups import gang_groups, quota_groups
from elastic_runtime.controller.decide.job_types import (
    NORMAL,
    WARNING,
    DeleteJob,
    DeletePod,
    JobPlan,
    Problem,
)
from elastic_runtime.controller.decide.job_types import RUNNING as POD_RUNNING
from elastic_runtime.controller.decide.manifests import selector
from elastic_runtime.controller.decide.plan_context import PlanContext
from elastic_runtime.controller.decide.pod_failures import Meaning, PodEnd, pause
from elastic_runtime.controller.decide.status_builder import (
    CREATED,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    PodSlot,
    StatusBuilder,
)
from elastic_runtime.controller.spec.field_reader import InvalidSpec
from elastic_runtime.controller.spec.job_spec import CLEAN_ALL, CLEAN_NONE, MANAGER, JobSpec
from elastic_runtime.controller.spec.scheduling_spec import ignored_queue
from elastic_runtime.kubernetes.api_times import format_time, parse_time
from elastic_runtime.limits import SHORT_POD_LIFE

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Action, Json, Observed, PodView

DEADLINE = "DeadlineExceeded"


def decide(
    job: Json,
    observed: Observed,
    now: float,
    etcd_image: str = ETCD_IMAGE,
    topology_labels: tuple[str, ...] = (),
) -> JobPlan:
    """Decides.

    Args:
        job: the ElasticJob as the API server has it: ``metadata``, ``spec``, ``status``.
        observed: its pods and what else belongs to it.
        now: seconds since 1970.
        etcd_image: of a job's own etcd, where the job does not choose.
        topology_labels: of nodes, nearest last, that pods are told, where the job does not choose.

    Returns:
        The actions, the whole status, events and when to ask again. An invalid spec is no error:
        it becomes a condition and an event.
    """
    if job["metadata"].get("deletionTimestamp"):
        return JobPlan(status=dict(job.get("status") or {}), reason="the job is being deleted")
    manager = (job.get("spec") or {}).get("managedBy")
    if manager not in (None, "", MANAGER):
        return JobPlan(status=dict(job.get("status") or {}), reason=f"{manager!r} manages the job")
    status = StatusBuilder(job, now)
    observed, left_behind = quota_groups.set_aside(observed)
    try:
        spec = node_topology.with_default(JobSpec.of(job), topology_labels)
    except InvalidSpec as error:
        if not status.ended:
            return _refuse_spec(status, observed, error)
        # Behind a job that has ended, all that counts is what is left of it.
        name, namespace = (str(job["metadata"].get(key)) for key in ("name", "namespace"))
        spec = JobSpec(name, namespace, uid="", template={})
    if status.ended:
        return _clean_up(spec, status, observed, left_behind)
    context = PlanContext(spec, status, observed, now, etcd_image, left_behind)
    new = status.generation != (job.get("status") or {}).get("observedGeneration")
    if new and (ignored := ignored_queue(job["metadata"], spec.scheduling)):
        status.add_event("QueueIgnored", str(ignored), WARNING)
    _accept_job(context, new)
    return (
        _check_pod_ends(context)
        or _check_deadline(context)
        or (_suspend(context) if spec.suspend else _run(context))
    )


# ---------------------------------------------------------------- the beginning


def _accept_job(context: PlanContext, new: bool) -> None:
    spec, status, memory = context.spec, context.status, context.status.memory
    if status.set_condition(CREATED, True, "Accepted", "the controller has accepted the job"):
        status.add_event("Accepted", "the controller has accepted the job")
        status.values.setdefault("attempt", 0)
        status.count_restarts({})
    labels = selector(spec.name)
    status.values["selector"] = ",".join(f"{name}={labels[name]}" for name in sorted(labels))
    if not context.observed.pods or not memory.launch:
        memory.launch = (spec.minimum, spec.maximum)
    elif new and context.launch != (spec.minimum, spec.maximum):
        low, high = context.launch
        status.add_event(
            "BoundsKept",
            f"the pods were launched with {low} to {high} nodes; other bounds hold for them after "
            "the job was suspended and resumed",
        )
    if not spec.suspend:
        status.values.setdefault("startTime", format_time(context.now))
        if memory.desired and memory.desired != context.desired:
            status.add_event("Scaled", f"from {memory.desired} to {context.desired} pods")
        memory.desired = context.desired


def _refuse_spec(status: StatusBuilder, observed: Observed, error: InvalidSpec) -> JobPlan:
    """Nothing is done about a spec that cannot be read; what runs, runs on."""
    problem = Problem("InvalidSpec", error.why, error.field)
    status.set_condition(CREATED, status.holds(CREATED), problem.reason, str(problem))
    enough = status.memory.launch[0] if status.memory.launch else 1
    if sum(pod.runs for pod in observed.pods) < enough:
        status.set_condition(RUNNING, False, problem.reason, str(problem))
    status.count_pods(observed.pods)
    status.report_problems([problem])
    return JobPlan(
        status=status.build(), events=tuple(status.events), reason=f"the spec is invalid: {problem}"
    )


# ---------------------------------------------------------------- the end


def _check_pod_ends(context: PlanContext) -> JobPlan | None:
    """Whether the pods' ends are the end of the job, or of this attempt."""
    memory = context.status.memory
    # The first one to end tells what happened, the others follow.
    ended = sorted(
        (pod for pod in context.pods if pod.ended and not pod.deleting),
        key=lambda pod: (pod.finished_at or NEVER, pod.index),
    )
    ends = [(pod, context.end_of(pod)) for pod in ended]
    for _, end in ends:
        if end.meaning is Meaning.FAIL:
            return _end_job(context, FAILED, end.reason, end.message)
    for pod, end in ends:
        if end.meaning is Meaning.COUNT:
            return _next_attempt(context, end, short=pod.lifetime < SHORT_POD_LIFE)
    left = [end for _, end in ends if end.meaning is Meaning.LEAVE]
    if left and context.wanted - len(left) < context.least:
        return _end_job(context, FAILED, "TooFewPods", f"too few pods are left: {left[-1].message}")
    memory.done = memory.done or any(end.meaning is Meaning.DONE for _, end in ends)
    if memory.done and not any(pod.runs for pod in context.observed.pods):
        return _end_job(context, SUCCEEDED, "Done", "the script ended well")
    return None


def _is_at_work(pod: PodView) -> bool:
    return pod.phase == POD_RUNNING and not pod.ended


def _next_attempt(context: PlanContext, end: PodEnd, short: bool) -> JobPlan:
    status, memory, spec = context.status, context.status.memory, context.spec
    memory.failures += 1
    if memory.failures > spec.backoff_limit:
        tried = f"; backoffLimit {spec.backoff_limit} is used up" if spec.backoff_limit else ""
        reason = "BackoffLimitExceeded" if spec.backoff_limit else end.reason
        return _end_job(context, FAILED, reason, end.message + tried)
    failures = memory.failures
    status.values["attempt"] = status.attempt + 1
    memory.until = math.ceil(context.now + pause(failures)) if short and failures > 1 else 0
    memory.launch = (spec.minimum, spec.maximum)
    memory.slots, memory.counted = {}, {}
    memory.begun = memory.done = False
    text = f"{end.message}; attempt {failures + 1} of {spec.backoff_limit + 1}"
    status.count_restarts({"failed": 1})
    status.note_fault(end.message)
    status.set_condition(RUNNING, False, "Restarting", text)
    status.set_condition(RESTARTING, True, "JobFailed", text)
    status.add_event("Restarting", text, WARNING)
    context.wake_at(context.now)
    return context.finish(f"the job is started again: {text}")


def _end_job(context: PlanContext, kind: str, reason: str, message: str) -> JobPlan:
    status, now = context.status, context.now
    status.set_condition(RUNNING, False, reason, message)
    status.set_condition(RESTARTING, False, reason, message)
    status.set_condition(SUSPENDED, False, reason, message)
    status.set_condition(kind, True, reason, message)
    status.values["completionTime"] = format_time(now)
    if report := context.last_report:
        status.apply_report(report, last=True)
    status.clear_world()
    if not context.running:
        rollout.forget(status, "Ended", "the job has ended")
    if kind == FAILED:
        status.note_fault(message)
    status.count_pods(context.observed.pods)
    status.add_event(
        kind if kind == SUCCEEDED else reason, message, NORMAL if kind == SUCCEEDED else WARNING
    )
    context.wake_at(now)
    return context.finish(f"{kind}: {message}")


def _check_deadline(context: PlanContext) -> JobPlan | None:
    """Whether the job has been active for too long; being suspended is not."""
    spec = context.spec
    if spec.deadline is None or spec.suspend:
        return None
    # A status that was written by hand may have no time that can be read.
    due = (parse_time(context.status.values["startTime"]) or context.now) + spec.deadline
    if due > context.now:
        context.wake_at(due)
        return None
    text = f"spec.activeDeadlineSeconds: the job has not ended within {spec.deadline} s"
    return _end_job(context, FAILED, DEADLINE, text)


def _clean_up(
    spec: JobSpec, status: StatusBuilder, observed: Observed, left_behind: tuple[PodView, ...]
) -> JobPlan:
    """Cleans up behind a job that has ended."""
    # Who says Failed by hand does not say when.
    status.values.setdefault("completionTime", format_time(status.now))
    actions: list[Action] = []
    late = status.reason_of(FAILED) == DEADLINE
    for pod in observed.pods:
        if pod.deleting:
            continue
        if pod.ended:
            goes = spec.clean == CLEAN_ALL
        else:
            # What has not begun would begin yet. A deadline is there to free what is taken.
            goes = spec.clean != CLEAN_NONE or late or pod.phase != POD_RUNNING
        if goes:
            why = f"the job has ended, cleanPodPolicy is {spec.clean}"
            actions.append(DeletePod(pod.name, pod.uid, None, why))
    actions += [*quota_groups.end_groups(observed.pods), *quota_groups.free_all(left_behind)]
    if not any(_is_at_work(pod) for pod in observed.pods):
        actions += pod_planning.delete_supporting_objects(spec, observed)
        actions += gang_groups.take_gang(status)
    if not any(pod.runs for pod in observed.pods):
        rollout.forget(status, "Ended", "the job has ended")
    status.count_pods(observed.pods, keep_ended=True)
    wake = NEVER
    if spec.ttl is not None:
        wake = (parse_time(status.values["completionTime"]) or status.now) + spec.ttl
        if wake <= status.now:
            actions, wake = [DeleteJob(f"it ended {spec.ttl} s ago, its TTL")], NEVER
    return JobPlan(tuple(actions), status.build(), (), wake, "the job has ended")


# ---------------------------------------------------------------- in between


def _suspend(context: PlanContext) -> JobPlan:
    status, memory = context.status, context.status.memory
    for pod in context.observed.pods:
        if not pod.deleting:
            context.actions.append(DeletePod(pod.name, pod.uid, None, "the job is suspended"))
    quota_groups.set_free(context)
    status.values.pop("startTime", None)
    if not context.running:
        status.clear_world()
        rollout.forget(status, "Suspended", "no pod runs")
    memory.slots = {pod.index: PodSlot(pod.uid) for pod in context.pods}
    memory.begun, memory.desired = False, 0
    if context.observed.pods:
        text = f"{len(context.observed.pods)} pods are ending"
        status.set_condition(RUNNING, False, "Suspending", text)
        status.set_condition(RESTARTING, False, "Suspending", text)
    else:
        text = "the job is suspended, no pod is left"
        status.set_condition(RUNNING, False, "Suspended", text)
        status.set_condition(RESTARTING, False, "Suspended", text)
        if status.set_condition(SUSPENDED, True, "Suspended", text):
            status.add_event("Suspended", text)
        context.actions += pod_planning.delete_supporting_objects(
            context.spec, context.observed, services=False
        )
        context.actions += gang_groups.take_gang(status)
    status.count_pods(context.observed.pods)
    return context.finish(text)


def _run(context: PlanContext) -> JobPlan:
    status = context.status
    if status.set_condition(SUSPENDED, False, "Resumed", "the job was resumed"):
        status.add_event("Resumed", "the job was resumed")
    pod_planning.ensure_supporting_objects(context)
    pod_planning.delete_former_pods(context)
    if status.memory.done:
        pod_planning.delete_waiting_pods(context)
    else:
        rollout.check_template(context)
        pod_planning.replace_ended_pods(context)
        pod_planning.delete_outdated_pods(context)
        pod_planning.scale_down(context)
        pod_planning.create_missing_pods(context)
    quota_groups.set_free(context)
    rollout.roll_out(context)
    pod_planning.guard_etcd(context)
    if not context.running:
        status.clear_world()
    elif context.report:
        status.apply_report(context.report)
    status.count_pods(context.observed.pods)
    conditions.find_problems(context)
    conditions.set_running(context)
    node_topology.fill_in(context)
    return context.finish(f"{len(context.running)} of {context.wanted} pods run")
