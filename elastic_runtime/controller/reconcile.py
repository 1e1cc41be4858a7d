"""Looks at one job after the other: observe, decide, perform, write the status, tell."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import NEVER
from elastic_runtime.controller.event_recorder import announce
from elastic_runtime.controller.executor import Outcome, Performer, adds
from elastic_runtime.kubernetes.api_client import JOBS, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_runtime.controller.cluster_state import World
    from elastic_runtime.controller.controller_metrics import Metrics
    from elastic_runtime.controller.decide.job_types import Observed, Plan, Problem
    from elastic_runtime.controller.views import Key
    from elastic_runtime.controller.workqueue import Queue
    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import Api, Json

    Decide = Callable[[Json, Observed, float], Plan]

_WORKERS = 8
# Seconds until the next try, the first and the longest: of what was not as we thought or found no
# answer, and of what is forbidden.
_SOON, _SOON_AT_MOST = 0.2, 5.0
_LATER, _LATER_AT_MOST = 1.0, 60.0
# So many tries in a row must find a name taken before that is a problem: an object may be ours,
# and not have been seen yet.
_TRIES = 3


@dataclass(frozen=True)
class Setback:
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
        first, longest = (_SOON, _SOON_AT_MOST) if soon else (_LATER, _LATER_AT_MOST)
        return min(first * 2.0 ** min(self.tries, 16), longest)


class Reconciler:
    """Brings jobs to what they ask for.

    Args:
        api: the client.
        world: what is known.
        queue: which jobs are to be looked at.
        decide: the pure decision.
        now: seconds since 1970.
        metrics: what is counted.
        emit: where decisions and errors are reported.
    """

    def __init__(
        self,
        api: Api,
        world: World,
        queue: Queue,
        decide: Decide,
        now: Callable[[], float],
        metrics: Metrics,
        emit: Emit,
    ) -> None:
        self._api, self._world, self._queue, self._decide = api, world, queue, decide
        self._now, self._metrics, self._emit = now, metrics, emit
        self._performer = Performer(api, world)
        self._setbacks: dict[Key, Setback] = {}

    async def run(self) -> None:
        """Works; never ends by itself."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                with self._metrics.reconcile_seconds.time():
                    await self.look_at(key)
            except ApiError as error:
                self._failed(key, str(error), passing=error.passing or error.conflict)
            except Exception as error:  # one job's trouble must not become all jobs' trouble
                self._failed(key, "".join(traceback.format_exception(error)), passing=False)
            finally:
                self._queue.done(key)

    async def look_at(self, key: Key) -> None:
        """Looks at a job once, and does what is to be done about it now.

        Raises:
            ApiError: the status could not be written.
        """
        await self._make_sure_of_rival(key)
        job = self._world.jobs.get(key)
        if job is None:
            self._setbacks.pop(key, None)
            self._queue.forget(key)
            return
        if job["metadata"].get("deletionTimestamp"):
            return  # all that it owns goes with it
        now, setback = self._now(), self._setback(key)
        waits = _ticks() < setback.until
        problems = setback.problems if waits else ()
        plan = self._decide(job, self._world.observe(key, problems), now)
        actions = [one for one in plan.actions if not (waits and adds(one))]
        if plan.reason and (actions or plan.events):
            self._emit("controller.decided", job="/".join(key), reason=plan.reason)
        outcome = await self._performer.perform(key, job["metadata"]["uid"], actions)
        if outcome.deleted or not self._is_there(key, job):
            return  # the next look finds that out
        if not waits:
            setback = self._remember(key, setback, outcome)
            if setback.problems:  # what is known now belongs into the status
                plan = self._decide(job, self._world.observe(key, setback.problems), now)
        await self._write(key, job, plan)
        pause = plan.wake_at - self._now()
        if setback.tries:
            pause = min(pause, setback.until - _ticks())
        if pause < NEVER:
            self._queue.put_later(key, pause)
        else:
            self._queue.forget(key)

    async def _make_sure_of_rival(self, key: Key) -> None:
        """Whoever is in a job's way may be gone: kopf misses what is deleted in a gap."""
        while rival := self._world.rival(key):
            uid = self._world.jobs[rival]["metadata"]["uid"]
            try:
                found = await self._api.get(JOBS.path(*rival))
            except ApiError as error:
                if not error.gone:
                    return
                found = {"metadata": {}}
            if found["metadata"].get("uid") == uid:
                return
            self._world.lost(rival, uid)

    def _setback(self, key: Key) -> Setback:
        about, before = ("", 0), self._setbacks.get(key)
        if job := self._world.jobs.get(key):
            about = job["metadata"]["uid"], int(job["metadata"].get("generation") or 0)
        return before if before and before.about == about else Setback(about)

    def _is_there(self, key: Key, job: Json) -> bool:
        now = self._world.jobs.get(key)
        return bool(now and now["metadata"]["uid"] == job["metadata"]["uid"])

    def _remember(self, key: Key, before: Setback, outcome: Outcome) -> Setback:
        """What went wrong this time, on top of what went wrong before."""
        if not (outcome.problems or outcome.again):
            self._setbacks.pop(key, None)
            return Setback()
        pause, tries = before.pause(soon=not outcome.problems), before.tries + 1
        problems = (*outcome.problems, *(outcome.taken if tries >= _TRIES else ()))
        after = Setback(before.about, _ticks() + pause, tries, problems)
        self._setbacks[key] = after
        self._metrics.refused.inc()
        for problem in problems:
            self._emit("controller.refused", job="/".join(key), reason=str(problem), delay=pause)
        return after

    async def _write(self, key: Key, job: Json, plan: Plan) -> None:
        """Writes the status if it is another one, and says then what has happened."""
        before = job.get("status") or {}
        if plan.status != before:
            # With its version: what was decided on an older state of the job is not to be kept.
            version = {"resourceVersion": job["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": difference(before, plan.status)}
            try:
                answer = await self._api.patch_status(JOBS, *key, patch)
            except ApiError as error:
                if not error.gone:
                    raise
                self._world.lost(key, job["metadata"]["uid"])
                return
            self._world.answered(answer)
        for event in plan.events:
            try:
                await announce(self._api, job, event)
            except ApiError as error:
                self._emit("controller.event_lost", job="/".join(key), reason=str(error))

    def _failed(self, key: Key, why: str, passing: bool) -> None:
        before = self._setback(key)
        self._metrics.errors.inc()
        pause = before.pause(soon=passing)
        self._setbacks[key] = Setback(before.about, 0.0, before.tries + 1, before.problems)
        self._emit("controller.error", job="/".join(key), reason=why, delay=pause)
        self._queue.put_later(key, pause)


def _ticks() -> float:
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
