"""One decision about a job that has not ended: what it starts from, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from elastic_runtime.clock import NEVER
from elastic_runtime.controller.decide import manifests
from elastic_runtime.controller.decide.job_types import RUNNING, CheckPod, DeletePod, JobPlan
from elastic_runtime.controller.decide.pod_failures import (
    CANNOT_START,
    POD_FAILED,
    Meaning,
    PodEnd,
    end_of,
)
from elastic_runtime.controller.spec.job_spec import RESTART_BY_EXIT_CODE
from elastic_runtime.limits import POD_PAUSES, SHORT_POD_LIFE, SLOW_POD_START

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import (
        Action,
        AgentReport,
        EtcdView,
        Observed,
        PodView,
        Problem,
    )
    from elastic_runtime.controller.decide.status_builder import StatusBuilder
    from elastic_runtime.controller.spec.job_spec import JobSpec


@dataclass
class PlanContext:
    """Collects a decision.

    Attributes:
        spec: what is asked for.
        status: the new one; its attempt and its memory are those of the present attempt.
        observed: what is there.
        now: seconds since 1970.
        etcd_image: of the job's own etcd, if the job does not choose.
        left_behind: pods of which nothing is left but an object that Kueue holds.
        actions: asked for so far.
        problems: found so far.
        wake: when to decide again at the latest.
    """

    spec: JobSpec
    status: StatusBuilder
    observed: Observed
    now: float
    etcd_image: str
    left_behind: tuple[PodView, ...] = ()
    actions: list[Action] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    wake: float = NEVER

    @property
    def doomed(self) -> set[str]:
        """The uids of the pods that are to be deleted, so far."""
        return {action.uid for action in self.actions if isinstance(action, DeletePod)}

    def wake_at(self, moment: float) -> None:
        """Asks for another decision at this moment, if that is ahead."""
        self.wake = min(self.wake, max(moment, self.now))

    def is_ahead(self, until: float) -> bool:
        """Whether a pause still lasts; what is further away was set by a clock that was wrong."""
        return 0 < until - self.now <= POD_PAUSES.longest + 1

    def has_passed(self, seconds: float, since: float) -> bool:
        """Whether so much time has passed; if not, another decision is asked for when it has.

        Args:
            seconds: how much.
            since: a moment, in seconds since 1970. What lies so far ahead that more would be left
                than that was said by a clock that is wrong, and is not waited for.
        """
        due = since + seconds
        if 0 < due - self.now <= seconds:
            self.wake_at(due)
            return False
        return True

    def finish(self, reason: str) -> JobPlan:
        """The decision, made."""
        self.status.report_problems(self.problems)
        return JobPlan(
            actions=tuple(self.actions),
            status=self.status.build(),
            events=tuple(self.status.events),
            wake_at=self.wake,
            reason=reason,
        )

    # ------------------------------------------------------------ sizes

    @property
    def attempt(self) -> int:
        """How often the whole job was started again."""
        return self.status.attempt

    @property
    def launch(self) -> tuple[int, int]:
        """The bounds that the agents of this attempt are started with.

        Agents that say different bounds take each other for different jobs, so that these stay
        while any of them is there.
        """
        kept = self.status.memory.launch
        return (kept[0], kept[1]) if kept else (self.spec.minimum, self.spec.maximum)

    @property
    def least(self) -> int:
        """With fewer pods the job is not what was asked for, or cannot run at all."""
        return max(self.spec.minimum, self.launch[0])

    @property
    def enough(self) -> int:
        """With so many pods the agents train."""
        return self.launch[0]

    @property
    def desired(self) -> int:
        """How many pods are asked for, within the bounds in force."""
        return max(self.least, self.spec.replicas)

    @property
    def wanted(self) -> int:
        """How many pods there are to be, spares included."""
        full = self.desired >= self.launch[1]
        return self.desired + (self.spec.spares if full else 0)

    # ------------------------------------------------------------ pods

    @cached_property
    def pods(self) -> tuple[PodView, ...]:
        """The pods of the present attempt, by index."""
        mine = (pod for pod in self.observed.pods if pod.attempt == self.status.attempt)
        return tuple(sorted(mine, key=lambda pod: pod.index))

    @cached_property
    def former(self) -> tuple[PodView, ...]:
        """Pods of earlier attempts that are still there."""
        attempt = self.status.attempt
        return tuple(pod for pod in self.observed.pods if pod.attempt != attempt)

    @property
    def ending(self) -> bool:
        """Whether a pod of an earlier attempt still runs: it may be writing a checkpoint.

        One on a node that is lost may never say that it has ended; it is not waited for.
        """
        return any(not pod.ended and pod.reason != "NodeLost" for pod in self.former)

    @property
    def running(self) -> tuple[PodView, ...]:
        """The pods that run."""
        return tuple(pod for pod in self.pods if pod.runs)

    @cached_property
    def outdated(self) -> tuple[PodView, ...]:
        """The pods that run, and were made from something else than the present spec."""
        return tuple(pod for pod in self.running if not self.is_current(pod))

    def is_current(self, pod: PodView) -> bool:
        """Whether a pod is what would be made now."""
        if pod.template != manifests.template_mark(self.spec):
            return False
        # A pod of an older controller does not say what else it was made from.
        return pod.settings in ("", manifests.settings_mark(self.spec))

    def end_of(self, pod: PodView) -> PodEnd:
        """What the end of a pod means, beside what else there is.

        Args:
            pod: one that has ended, and was not deleted.

        A pod that cannot start is the end of a job, and one that fails is a failure, unless other
        pods train with another template: then it says something about this template, and not about
        the job.
        """
        end, last = end_of(self.spec, pod), pod.last_report
        by_itself = end.meaning is Meaning.COUNT or (
            end.reason == POD_FAILED and self.spec.restart_policy == RESTART_BY_EXIT_CODE
        )
        at_once = pod.lifetime < SHORT_POD_LIFE or (last is not None and not last.round)
        if end.reason in CANNOT_START or (by_itself and at_once):
            # What is on a node that is lost is not ready.
            others = (one for one in self.pods if one.phase == RUNNING and one.ready)
            if any(_are_different(pod, one) for one in others if not one.ended):
                return replace(end, meaning=Meaning.REPLACE)
        return end

    def is_slow(self, etcd: EtcdView) -> bool:
        """Whether an etcd is not ready for so long that it will not be by itself."""
        if etcd.serves or not etcd.unready_since:
            return False
        return self.has_passed(SLOW_POD_START, etcd.unready_since)

    def is_former(self, pod: PodView) -> bool:
        """Whether a pod is of an earlier attempt."""
        return pod.attempt != self.status.attempt

    def is_left_out(self, index: int) -> bool:
        """Whether there is no place or quota for a pod, or it is left as it ended, as asked."""
        pod = next((one for one in self.pods if one.index == index), None)
        if pod is None:
            return False
        left = pod.ended and self.end_of(pod).meaning is Meaning.LEAVE
        return left or (bool(pod.unschedulable or pod.gates) and not pod.runs)

    @property
    def template_accepted(self) -> bool:
        """Whether the API server accepts pods of the present template, as far as was asked."""
        return not any(isinstance(action, CheckPod) for action in self.actions)

    @property
    def store_serves(self) -> bool:
        """Whether a new pod would find the store, as far as it is ours to know."""
        etcd = self.observed.etcd
        return bool(self.spec.endpoint) or (etcd is not None and etcd.serves)

    @property
    def endpoint(self) -> str:
        """Where the agents meet; "" while that is not known."""
        return manifests.etcd_endpoint(self.spec, self.observed.services)

    @property
    def report(self) -> AgentReport | None:
        """What the agents say, if it is of this attempt."""
        report = self.observed.report
        return report if report and self._is_of_this_attempt(report) else None

    @property
    def last_report(self) -> AgentReport | None:
        """What is known of the end: agents that have ended know more than they said before."""
        said = [*(pod.last_report for pod in self.pods), self.observed.report]
        known = [one for one in said if one and one.round and self._is_of_this_attempt(one)]

        def how_far(one: AgentReport) -> tuple[int, int, int]:
            return one.round, one.step, sum(one.restarts.values())

        return max(known, key=how_far, default=self.report)

    def _is_of_this_attempt(self, report: AgentReport) -> bool:
        return report.run_id in ("", self.spec.run_id(self.status.attempt))


def _are_different(pod: PodView, other: PodView) -> bool:
    """Whether two pods were made from something else, as far as they say it."""
    known = "" not in (pod.settings, other.settings)
    return pod.template != other.template or (known and pod.settings != other.settings)
