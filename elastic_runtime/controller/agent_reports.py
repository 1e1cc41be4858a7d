"""Asks the agents of running jobs how training goes; the API server has no part in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp

from elastic_runtime.controller.decide.job_types import PodView
from elastic_runtime.controller.decide.manifests import METRICS_PORT
from elastic_runtime.controller.read_report import read_report
from elastic_runtime.limits import (
    FIRST_REPORT_INTERVAL,
    NO_REPORT_PAUSES,
    REPORT_INTERVAL,
    STARTING_PODS_PAUSE,
    STARTING_PODS_TIME,
    STATUS_STEP_INTERVAL,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.clock import Clock
    from elastic_runtime.controller.cluster_state import ClusterState
    from elastic_runtime.controller.decide.job_types import AgentReport
    from elastic_runtime.controller.views import Key

_ANSWER_SECONDS = 2.0
_AT_ONCE = 16
_TRIED = 3
_LARGEST = 64 * 1024


@dataclass(frozen=True)
class Polling:
    """How it went with one job so far.

    Attributes:
        addresses: of the pods that run, by index.
        due: when to ask again.
        failures: times in a row without any answer.
        reported_at: when its last report was passed on.
        since: when its pods were these for the first time.
    """

    addresses: tuple[str, ...]
    due: float
    failures: int = 0
    reported_at: float = 0.0
    since: float = 0.0


class AgentReports:
    """Keeps ``state.reports`` up to date.

    Args:
        state: what is known.
        changed: called with the job when its report says something new.
        clock: the time.
        port: where agents answer.
    """

    def __init__(
        self,
        state: ClusterState,
        changed: Callable[[Key], None],
        clock: Clock,
        port: int = METRICS_PORT,
    ) -> None:
        self._state, self._changed, self._clock, self._port = state, changed, clock, port
        self._asked: dict[Key, Polling] = {}

    async def run(self) -> None:
        """Asks; never ends by itself."""
        gate = asyncio.Semaphore(_AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

            async def ask(key: Key) -> None:
                async with gate:
                    await self._ask(session, key)

            while True:
                self._update_targets()
                now = self._clock.now()
                due = [key for key, asked in self._asked.items() if asked.due <= now]
                await asyncio.gather(*(ask(key) for key in due))
                await asyncio.sleep(FIRST_REPORT_INTERVAL)

    def _update_targets(self) -> None:
        """Which jobs have pods that run, and where."""
        state, now = self._state, self._clock.now()
        for gone in self._asked.keys() - state.jobs.keys():
            del self._asked[gone]
        for key, job in state.jobs.items():
            pods = state.pods.owned_by(key, job["metadata"]["uid"]).values()
            addresses = _addresses([pod for pod in pods if isinstance(pod, PodView)])
            asked = self._asked.get(key)
            if not addresses:
                self._asked.pop(key, None)
            elif asked is None or asked.addresses != addresses:
                reported_at = asked.reported_at if asked else 0.0
                self._asked[key] = Polling(addresses, now, reported_at=reported_at, since=now)

    async def _ask(self, session: aiohttp.ClientSession, key: Key) -> None:
        asked = self._asked[key]
        report = None
        for address in asked.addresses[:_TRIED]:
            report = await self._fetch(session, address)
            if report and report.ready:
                break
        now = self._clock.now()
        if self._asked.get(key) != asked or key not in self._state.jobs:
            return  # it is another job, or has other pods, by now
        if report is None:
            failures = asked.failures + 1
            pause = pause_without_answer(failures, now - asked.since)
            self._asked[key] = replace(asked, due=now + pause, failures=failures)
            if failures > 1 and key in self._state.reports:
                del self._state.reports[key]
                self._changed(key)
            return
        pause = REPORT_INTERVAL if report.ready else FIRST_REPORT_INTERVAL
        is_new = self._is_new(key, report, now - asked.reported_at)
        self._state.reports[key] = report
        reported_at = now if is_new else asked.reported_at
        self._asked[key] = replace(asked, due=now + pause, failures=0, reported_at=reported_at)
        if is_new:
            self._changed(key)

    def _is_new(self, key: Key, report: AgentReport, age: float) -> bool:
        before = self._state.reports.get(key)
        if before is None or _round_of(before) != _round_of(report):
            return True
        if before.step < 0 <= report.step:
            return True  # the first one: that it trains is news
        return before != report and age >= STATUS_STEP_INTERVAL

    async def _fetch(self, session: aiohttp.ClientSession, address: str) -> AgentReport | None:
        host = f"[{address}]" if ":" in address else address
        try:
            url = f"http://{host}:{self._port}/status"
            # Pods are the users': they do not choose what else the controller asks.
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                return read_report(await answer.content.read(_LARGEST))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None  # no agent, not yet, or none of ours


def pause_without_answer(failures: int, age: float) -> float:
    """Seconds until pods that did not answer are asked again.

    Args:
        failures: how often in a row they did not.
        age: for how many seconds these pods have run.
    """
    pause = NO_REPORT_PAUSES.pause(failures)
    return min(pause, STARTING_PODS_PAUSE) if age < STARTING_PODS_TIME else pause


def _addresses(pods: Sequence[PodView]) -> tuple[str, ...]:
    running = sorted((pod.index, pod.address) for pod in pods if pod.runs and pod.address)
    return tuple(address for _, address in running)


def _round_of(report: AgentReport) -> tuple[object, ...]:
    return report.run_id, report.round, report.world, report.ready, dict(report.restarts)
