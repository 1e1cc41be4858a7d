"""What is to be done about one ElasticJob now: a pure function of what is seen.

The rules:

- What must not be forgotten is written down before anything follows from it: a plan that ends the
  job, or orders another attempt, does nothing else. What follows is decided anew from the status.
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

from elastic_runtime.controller.decide import conditions, pod_planning
from elastic_runtime.controller.decide.field_reader import InvalidSpec
from elastic_runtime.controller.decide.job_spec import CLEAN_ALL, CLEAN_NONE, JobSpec
from elastic_runtime.controller.decide.job_types import (
    NEVER,
    NORMAL,
    WARNING,
    DeleteJob,
    DeletePod,
    Plan,
    Problem,
)
from elastic_runtime.controller.decide.job_types import RUNNING as POD_RUNNING
from elastic_runtime.controller.decide.manifests import ETCD_IMAGE, selector
from elastic_runtime.controller.decide.plan_context import Work
from elastic_runtime.controller.decide.pod_failures import End, Meaning, end_of
from elastic_runtime.controller.decide.status_builder import (
    CREATED,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    Draft,
    Slot,
    moment,
    stamp,
)

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Action, Json, Observed, PodView

DEADLINE = "DeadlineExceeded"


def decide(job: Json, observed: Observed, now: float, etcd_image: str = ETCD_IMAGE) -> Plan:
    """Decides.

    Args:
        job: the ElasticJob as the API server has it: ``metadata``, ``spec``, ``status``.
        observed: its pods and what else belongs to it.
        now: seconds since 1970.
        etcd_image: of a job's own etcd, where the job does not choose.

    Returns:
        The actions, the whole status, events and when to ask again. An invalid spec is no error:
        it becomes a condition and an event.
    """
    if job["metadata"].get("deletionTimestamp"):
        return Plan(status=dict(job.get("status") or {}), reason="the job is being deleted")
    draft = Draft(job, now)
    try:
        spec = JobSpec.of(job)
    except InvalidSpec as error:
        if not draft.ended:
            return _refuse(draft, observed, error)
        # Behind a job that has ended, all that counts is what is left of it.
        name, namespace = (str(job["metadata"].get(key)) for key in ("name", "namespace"))
        spec = JobSpec(name, namespace, uid="", template={})
    if draft.ended:
        return _after(spec, draft, observed)
    work = Work(spec, draft, observed, now, etcd_image)
    _accept(work, new=draft.generation != (job.get("status") or {}).get("observedGeneration"))
    return _judge(work) or _too_late(work) or (_suspend(work) if spec.suspend else _run(work))


# ---------------------------------------------------------------- the beginning


def _accept(work: Work, new: bool) -> None:
    spec, draft, memory = work.spec, work.draft, work.draft.memory
    if draft.set(CREATED, True, "Accepted", "the controller has taken the job on"):
        draft.event("Accepted", "the controller has taken the job on")
        draft.values.setdefault("attempt", 0)
        draft.count_restarts({})
    labels = selector(spec.name)
    draft.values["selector"] = ",".join(f"{name}={labels[name]}" for name in sorted(labels))
    if not work.observed.pods:
        memory.launch = (spec.minimum, spec.maximum)
    elif new and work.launch != (spec.minimum, spec.maximum):
        low, high = work.launch
        draft.event(
            "BoundsKept",
            f"the pods were launched with {low} to {high} nodes; other bounds hold for them after "
            "the job was suspended and resumed",
        )
    if not spec.suspend:
        draft.values.setdefault("startTime", stamp(work.now))
        if memory.desired and memory.desired != work.desired:
            draft.event("Scaled", f"from {memory.desired} to {work.desired} pods")
        memory.desired = work.desired


def _refuse(draft: Draft, observed: Observed, error: InvalidSpec) -> Plan:
    """Nothing is done about a spec that cannot be read; what runs, runs on."""
    problem = Problem("InvalidSpec", error.why, error.field)
    draft.set(CREATED, draft.is_(CREATED), problem.reason, str(problem))
    enough = draft.memory.launch[0] if draft.memory.launch else 1
    if sum(pod.runs for pod in observed.pods) < enough:
        draft.set(RUNNING, False, problem.reason, str(problem))
    draft.count_pods(observed.pods)
    draft.tell([problem])
    return Plan(
        status=draft.finish(), events=tuple(draft.events), reason=f"the spec is invalid: {problem}"
    )


# ---------------------------------------------------------------- the end


def _judge(work: Work) -> Plan | None:
    """Whether the pods' ends are the end of the job, or of this attempt."""
    memory, spec = work.draft.memory, work.spec
    # The first one to end tells what happened, the others follow.
    ended = sorted(
        (pod for pod in work.pods if pod.ended and not pod.deleting),
        key=lambda pod: (pod.finished_at or NEVER, pod.index),
    )
    ends = [(pod, end_of(spec, pod)) for pod in ended]
    for _, end in ends:
        if end.meaning is Meaning.FAIL:
            return _end(work, FAILED, end.reason, end.message)
    for pod, end in ends:
        if end.meaning is Meaning.COUNT:
            return _next_attempt(work, end, short=pod.lifetime < pod_planning.SHORT_LIFE)
    left = [end for _, end in ends if end.meaning is Meaning.LEAVE]
    if left and work.wanted - len(left) < work.least:
        return _end(work, FAILED, "TooFewPods", f"too few pods are left: {left[-1].message}")
    memory.done = memory.done or any(end.meaning is Meaning.DONE for _, end in ends)
    if memory.done and not any(pod.runs for pod in work.observed.pods):
        return _end(work, SUCCEEDED, "Done", "the script ended well")
    return None


def _is_at_work(pod: PodView) -> bool:
    return pod.phase == POD_RUNNING and not pod.ended


def _next_attempt(work: Work, end: End, short: bool) -> Plan:
    draft, memory, spec = work.draft, work.draft.memory, work.spec
    memory.failures += 1
    if memory.failures > spec.backoff_limit:
        tried = f"; backoffLimit {spec.backoff_limit} is used up" if spec.backoff_limit else ""
        reason = "BackoffLimitExceeded" if spec.backoff_limit else end.reason
        return _end(work, FAILED, reason, end.message + tried)
    failures = memory.failures
    draft.values["attempt"] = draft.attempt + 1
    memory.until = (
        math.ceil(work.now + pod_planning.pause(failures)) if short and failures > 1 else 0
    )
    memory.launch = (spec.minimum, spec.maximum)
    memory.slots, memory.counted = {}, {}
    memory.begun = memory.done = False
    text = f"{end.message}; attempt {failures + 1} of {spec.backoff_limit + 1}"
    draft.count_restarts({"failed": 1})
    draft.set(RUNNING, False, "Restarting", text)
    draft.set(RESTARTING, True, "JobFailed", text)
    draft.event("Restarting", text, WARNING)
    work.wake_at(work.now)
    return work.plan(f"the job is started again: {text}")


def _end(work: Work, kind: str, reason: str, message: str) -> Plan:
    draft, now = work.draft, work.now
    draft.set(RUNNING, False, reason, message)
    draft.set(RESTARTING, False, reason, message)
    draft.set(SUSPENDED, False, reason, message)
    draft.set(kind, True, reason, message)
    draft.values["completionTime"] = stamp(now)
    if work.report:
        draft.hear(work.report, last=True)
    draft.count_pods(work.observed.pods)
    draft.event(
        kind if kind == SUCCEEDED else reason, message, NORMAL if kind == SUCCEEDED else WARNING
    )
    work.wake_at(now)
    return work.plan(f"{kind}: {message}")


def _too_late(work: Work) -> Plan | None:
    """Whether the job has been active for too long; being suspended is not."""
    spec = work.spec
    if spec.deadline is None or spec.suspend:
        return None
    due = moment(work.draft.values["startTime"]) + spec.deadline
    if due > work.now:
        work.wake_at(due)
        return None
    text = f"spec.activeDeadlineSeconds: the job has not ended within {spec.deadline} s"
    return _end(work, FAILED, DEADLINE, text)


def _after(spec: JobSpec, draft: Draft, observed: Observed) -> Plan:
    """Cleans up behind a job that has ended."""
    draft.values.setdefault("completionTime", stamp(draft.now))  # who says Failed by hand does not
    actions: list[Action] = []
    late = draft.reason(FAILED) == DEADLINE
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
    if not any(_is_at_work(pod) for pod in observed.pods):
        actions += pod_planning.dismantle(spec, observed)
    draft.count_pods(observed.pods, keep_ended=True)
    wake = NEVER
    if spec.ttl is not None:
        wake = moment(draft.values["completionTime"]) + spec.ttl
        if wake <= draft.now:
            actions, wake = [DeleteJob(f"it ended {spec.ttl} s ago, its TTL")], NEVER
    return Plan(tuple(actions), draft.finish(), (), wake, "the job has ended")


# ---------------------------------------------------------------- in between


def _suspend(work: Work) -> Plan:
    draft, memory = work.draft, work.draft.memory
    for pod in work.observed.pods:
        if not pod.deleting:
            work.actions.append(DeletePod(pod.name, pod.uid, None, "the job is suspended"))
    draft.values.pop("startTime", None)
    memory.slots = {pod.index: Slot(pod.uid) for pod in work.pods}
    memory.begun, memory.desired = False, 0
    if work.observed.pods:
        text = f"{len(work.observed.pods)} pods are ending"
        draft.set(RUNNING, False, "Suspending", text)
        draft.set(RESTARTING, False, "Suspending", text)
    else:
        text = "the job is suspended, no pod is left"
        draft.set(RUNNING, False, "Suspended", text)
        draft.set(RESTARTING, False, "Suspended", text)
        if draft.set(SUSPENDED, True, "Suspended", text):
            draft.event("Suspended", text)
        work.actions += pod_planning.dismantle(work.spec, work.observed, services=False)
    draft.count_pods(work.observed.pods)
    return work.plan(text)


def _run(work: Work) -> Plan:
    draft = work.draft
    if draft.set(SUSPENDED, False, "Resumed", "the job goes on"):
        draft.event("Resumed", "the job goes on")
    pod_planning.surround(work)
    pod_planning.clear_former(work)
    if draft.memory.done:
        pod_planning.remove_waiting(work)
    else:
        pod_planning.replace_fallen(work)
        pod_planning.renew(work)
        pod_planning.shrink(work)
        pod_planning.create_missing(work)
    if work.report:
        draft.hear(work.report)
    draft.count_pods(work.observed.pods)
    conditions.find_problems(work)
    conditions.tell_running(work)
    return work.plan(f"{len(work.running)} of {work.wanted} pods run")
