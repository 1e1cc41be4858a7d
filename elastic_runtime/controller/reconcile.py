"""Looks at one job after the other: observe, decide, perform, write the status, tell."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.clock import NEVER
from elastic_runtime.controller.decide.groups.quota_groups import free_all
from elastic_runtime.controller.decide.job_types import (
    ApplyManifest,
    ApplyPodGroup,
    CheckPod,
    CreatePod,
    NoteTopology,
)
from elastic_runtime.controller.decide.rollout import REFUSED
from elastic_runtime.controller.event_recorder import record_event
from elastic_runtime.controller.executor import Executor, Outcome
from elastic_runtime.controller.spec.job_spec import JOBS
from elastic_runtime.events.controller_events import (
    ControllerDecided,
    ControllerError,
    ControllerEventLost,
    ControllerRefused,
)
from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.limits import (
    CONFLICT_PAUSES,
    FORBIDDEN_TOPOLOGY_PAUSE,
    NAME_TAKEN_TRIES,
    RECONCILE_WORKERS,
    REFUSAL_PAUSES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_runtime.controller.cluster_state import ClusterState
    from elastic_runtime.controller.controller_metrics import ControllerMetrics
    from elastic_runtime.controller.decide.job_types import JobPlan, Observed, Problem
    from elastic_runtime.controller.views import Key
    from elastic_runtime.controller.workqueue import WorkQueue
    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import ApiClient, Json

    Decide = Callable[[Json, Observed, float], JobPlan]


@dataclass(frozen=True)
class Retry:
    """What has gone wrong with a job, and when it is tried again.

    Attributes:
        about: uid and generation of the job: what is asked for otherwise is tried at once.
        until: no sooner than that nothing new is made for it; a time of the loop's, since a
            clock on the wall may be set back.
        tries: how often in a row it went wrong.
        problems: what the API server forbade.
    """

    about: tuple[str, int] = ("", 0)
    until: float = 0.0
    tries: int = 0
    problems: tuple[Problem, ...] = ()

    def pause(self, soon: bool) -> float:
        """Seconds until the next try."""
        return (CONFLICT_PAUSES if soon else REFUSAL_PAUSES).pause(self.tries + 1)


class Reconciler:
    """Brings jobs to what they ask for.

    Args:
        client: asks the API server.
        state: what is known.
        queue: which jobs are to be looked at.
        decide: the pure decision.
        now: seconds since 1970.
        metrics: what is counted.
        emit: where decisions and errors are reported.
    """

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        queue: WorkQueue,
        decide: Decide,
        now: Callable[[], float],
        metrics: ControllerMetrics,
        emit: Emit,
    ) -> None:
        self._client, self._state, self._queue, self._decide = client, state, queue, decide
        self._now, self._metrics, self._emit = now, metrics, emit
        self._executor = Executor(client, state)
        self._setbacks: dict[Key, Retry] = {}
        self._asides: dict[Key, Retry] = {}  # what holds up nothing
        self._checked: dict[Key, str] = {}  # marks of templates that were accepted just now

    async def run(self) -> None:
        """Works; never ends by itself."""
        async with asyncio.TaskGroup() as group:
            for _ in range(RECONCILE_WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                with self._metrics.reconcile_seconds.time():
                    await self.reconcile(key)
            except ApiError as error:
                self._failed(key, str(error), passing=error.transient or error.conflict)
            except Exception as error:  # one job's trouble must not become all jobs' trouble
                self._failed(key, "".join(traceback.format_exception(error)), passing=False)
            finally:
                self._queue.done(key)

    async def reconcile(self, key: Key) -> None:
        """Looks at a job once, and does what is to be done about it now.

        Raises:
            ApiError: the status could not be written.
        """
        orphans = await self._free_orphans(key)
        job = self._state.jobs.get(key)
        if job is None:
            for kept in (self._setbacks, self._asides, self._checked):
                kept.pop(key, None)
            self._queue.cancel_timer(key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            if orphans < NEVER:
                self._queue.add_after(key, orphans)
            return  # all that it owns goes with it
        now, setback = self._now(), self._setback(key)
        waits = _loop_time() < setback.until
        problems = setback.problems if waits else ()
        checked = self._checked.pop(key, "")
        asides = self._aside(key).problems
        plan = self._decide(job, self._state.observe(key, problems, checked, asides), now)
        # A template that is refused says nothing about etcd and Services.
        of_pods = bool(problems) and all(problem.reason == REFUSED for problem in problems)
        held: tuple[type, ...] = (CreatePod, CheckPod, ApplyPodGroup)
        if not of_pods:
            held = (*held, ApplyManifest)
        notes = [one for one in plan.actions if isinstance(one, NoteTopology)]
        left = (NoteTopology, *held) if waits else NoteTopology
        actions = [one for one in plan.actions if not isinstance(one, left)]
        if plan.reason and (actions or plan.events):
            self._emit(ControllerDecided("/".join(key), plan.reason))
        outcome, aside = await asyncio.gather(
            self._executor.execute(key, job["metadata"]["uid"], actions), self._note(key, notes)
        )
        if outcome.deleted or not self._is_there(key, job):
            return  # the next look finds that out
        if not waits:
            setback = self._remember(key, setback, outcome)
            if setback.problems:  # what is known now belongs into the status
                seen = self._state.observe(key, setback.problems, asides=asides)
                plan = self._decide(job, seen, now)
        await self._write(key, job, plan)
        pause = min(plan.wake_at - self._now(), orphans)
        if outcome.checked:
            self._checked[key], pause = outcome.checked, 0.0
        if aside.problems != asides:
            pause = 0.0  # the next look says so
        for retry in (setback, aside):
            if retry.tries:
                pause = min(pause, retry.until - _loop_time())
        if pause < NEVER:
            self._queue.add_after(key, pause)
        else:
            self._queue.cancel_timer(key)

    async def _free_orphans(self, key: Key) -> float:
        """Frees pods that only Kueue holds, of jobs that are gone.

        Returns:
            Seconds until it is to be tried again; ``NEVER`` if all went well.
        """
        actions = free_all(self._state.orphans(key))
        outcome = await self._executor.execute(key, "", actions)
        if outcome.problems:
            self._metrics.refused.inc()
            for problem in outcome.problems:
                self._emit(ControllerRefused("/".join(key), str(problem), REFUSAL_PAUSES.longest))
            return REFUSAL_PAUSES.longest
        return CONFLICT_PAUSES.longest if outcome.again else NEVER

    def _setback(self, key: Key) -> Retry:
        about, before = ("", 0), self._setbacks.get(key)
        if job := self._state.jobs.get(key):
            about = job["metadata"]["uid"], int(job["metadata"].get("generation") or 0)
        return before if before and before.about == about else Retry(about)

    def _aside(self, key: Key) -> Retry:
        """What is wrong with telling the job's pods where they are."""
        about, before = ("", 0), self._asides.get(key)
        if job := self._state.jobs.get(key):
            about = job["metadata"]["uid"], 0
        return before if before and before.about == about else Retry(about)

    async def _note(self, key: Key, notes: Sequence[NoteTopology]) -> Retry:
        """Tells pods where they are, unless it is too soon to try again.

        What is forbidden is not asked for by a timer: an agent waits for seconds only.
        """
        before = self._aside(key)
        if not notes or _loop_time() < before.until:
            return before if notes else replace(before, tries=0)
        outcome = await self._executor.note(key, notes)
        after = Retry(before.about)
        pause = FORBIDDEN_TOPOLOGY_PAUSE if outcome.refused else 0.0
        if outcome.problem:
            after = replace(after, until=_loop_time() + pause, problems=(outcome.problem,))
            if not before.problems:
                self._emit(ControllerRefused("/".join(key), str(outcome.problem), pause))
        if outcome.again and not outcome.refused:
            until, problems = _loop_time() + before.pause(soon=False), after.problems
            problems = problems or before.problems
            after = replace(after, until=until, tries=before.tries + 1, problems=problems)
        self._asides[key] = after
        return after

    def _is_there(self, key: Key, job: Json) -> bool:
        now = self._state.jobs.get(key)
        return bool(now and now["metadata"]["uid"] == job["metadata"]["uid"])

    def _remember(self, key: Key, before: Retry, outcome: Outcome) -> Retry:
        """What went wrong this time, on top of what went wrong before."""
        if not (outcome.problems or outcome.again):
            self._setbacks.pop(key, None)
            return Retry()
        pause, tries = before.pause(soon=not outcome.problems), before.tries + 1
        problems = (*outcome.problems, *(outcome.taken if tries >= NAME_TAKEN_TRIES else ()))
        after = Retry(before.about, _loop_time() + pause, tries, problems)
        self._setbacks[key] = after
        self._metrics.refused.inc()
        for problem in problems:
            self._emit(ControllerRefused("/".join(key), str(problem), pause))
        return after

    async def _write(self, key: Key, job: Json, plan: JobPlan) -> None:
        """Writes the status if it is another one, and says then what has happened."""
        before = job.get("status") or {}
        if plan.status != before:
            # With its version: what was decided on an older state of the job is not to be kept.
            version = {"resourceVersion": job["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": difference(before, plan.status)}
            try:
                answer = await self._client.merge(JOBS, *key, patch, "status")
            except ApiError as error:
                if not error.not_found:
                    raise
                return  # the watch will say so
            self._state.update_known(answer)
        for event in plan.events:
            try:
                await record_event(self._client, job, event)
            except ApiError as error:
                self._emit(ControllerEventLost("/".join(key), str(error)))

    def _failed(self, key: Key, why: str, passing: bool) -> None:
        before = self._setback(key)
        self._metrics.errors.inc()
        pause = before.pause(soon=passing)
        self._setbacks[key] = Retry(before.about, 0.0, before.tries + 1, before.problems)
        self._emit(ControllerError("/".join(key), why, pause))
        self._queue.add_after(key, pause)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
    """The JSON merge patch that makes ``after`` of ``before``."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if below := difference(old, value):
                patch[name] = below
        elif name not in before or value != old:
            patch[name] = value
    return patch
