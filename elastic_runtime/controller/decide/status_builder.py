"""The status of an ElasticJob: conditions that tell the truth, and what must be remembered.

A ``StatusBuilder`` begins as the old status and becomes the new one. What the next decision has to
know is in the field ``memory``, which is for it alone; everything else is for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import NORMAL, PENDING, WARNING, JobEvent
from elastic_runtime.events.round_events import RESTART_CLASSES
from elastic_runtime.kubernetes.api_times import format_time
from elastic_runtime.limits import LONGEST_REASON, STATUS_STEP_INTERVAL
from elastic_runtime.reporting.wording import cut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.controller.decide.job_types import AgentReport, Json, PodView, Problem

CREATED, RUNNING, RESTARTING = "Created", "Running", "Restarting"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
OUTDATED = "Outdated"
CONDITIONS = (CREATED, RUNNING, RESTARTING, SUSPENDED, OUTDATED, SUCCEEDED, FAILED)


@dataclass(frozen=True, slots=True)
class PodSlot:
    """What became of the last pod with one index that ended or was taken away.

    Attributes:
        uid: of that pod, so that its end is counted once.
        falls: ends in a row, each soon after a start; what the back-off is made of.
        until: when its successor may be created at the earliest, in seconds since 1970.
        code: its exit code; 0: it had none, or was taken away.
        why: for people; "" if we have ended it ourselves, as the spec asked.
        round: the round that the job was in then; 0: none yet, or nobody has said.
    """

    uid: str
    falls: int = 0
    until: int = 0
    code: int = 0
    why: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Roll:
    """The last pod that was replaced because of its template.

    Attributes:
        uid, index: which one.
        round, nodes: the round that it was taken from, and how many nodes that had; 0: nobody says.
    """

    uid: str
    index: int
    round: int = 0
    nodes: int = 0


def _known(kind: type[PodSlot | Roll | Memory], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kept[name] for name in kind.__dataclass_fields__ if name in kept}


@dataclass(slots=True)
class Memory:
    """What the next decision has to know.

    Attributes:
        launch: bounds that the present attempt was launched with; empty before.
        desired: pods asked for when last seen; 0: none yet.
        failures: failures of the user's code, counted against ``backoffLimit``.
        until: when the present attempt may begin, in seconds since 1970.
        begun: enough of its pods have run.
        done: a pod of the present attempt ended well; nothing is created from then on.
        slots: by index.
        counted: the restarts that agents reported last.
        stepped: when the step was last written, in seconds since 1970.
        told: the problems that there is an event about.
        checked: the mark of the template that the API server has checked last.
        roll: the last step of a rollout; None: there is none.
        etcd: the last etcd pod of the job that has ended; None: none has.
        gang: whose PodGroup was made last for the job, and its name; empty: none is there.
    """

    launch: tuple[int, ...] = ()
    desired: int = 0
    failures: int = 0
    until: int = 0
    begun: bool = False
    done: bool = False
    slots: dict[int, PodSlot] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    stepped: int = 0
    told: tuple[str, ...] = ()
    checked: str = ""
    roll: Roll | None = None
    etcd: PodSlot | None = None
    gang: tuple[str, ...] = ()

    @classmethod
    def of(cls, kept: Any) -> Memory:
        """As it was kept in the status, perhaps by a controller that keeps more.

        What cannot be read, since somebody has written it by hand, is forgotten.
        """
        try:
            return cls._read(kept)
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()

    @classmethod
    def _read(cls, kept: Mapping[str, Any]) -> Memory:
        given = _known(cls, kept)
        for name in ("launch", "told", "gang"):
            if name in given:
                given[name] = tuple(given[name])
        slots = kept.get("slots", {})
        given["slots"] = {int(n): PodSlot(**_known(PodSlot, slot)) for n, slot in slots.items()}
        given["counted"] = dict(kept.get("counted", {}))
        for name, kind in (("roll", Roll), ("etcd", PodSlot)):
            one = kept.get(name)
            given[name] = kind(**_known(kind, one)) if one else None
        if len(given.get("launch", ())) not in (0, 2):
            raise ValueError("bounds are two numbers")
        if len(given.get("gang", ())) not in (0, 2):
            raise ValueError("a gang is a kind and a name")
        return cls(**given)

    def kept(self) -> dict[str, Any]:
        """As it is kept: what is empty is left out, keys are text."""
        values: dict[str, Any] = asdict(self)
        values["slots"] = {str(n): values["slots"][n] for n in sorted(self.slots)}
        for name in ("launch", "told", "gang"):
            values[name] = list(values[name])
        return {name: value for name, value in values.items() if value}


class StatusBuilder:
    """The status while it is being decided.

    Args:
        job: the ElasticJob with its old status.
        now: seconds since 1970.
    """

    def __init__(self, job: Json, now: float) -> None:
        old: Mapping[str, Any] = job.get("status") or {}
        self.now = now
        self.generation = int((job.get("metadata") or {}).get("generation") or 0)
        self.values = dict(old)
        self.memory = Memory.of(old.get("memory") or {})
        self.events: list[JobEvent] = []
        # Somebody may have written it by hand.
        conditions = [one for one in old.get("conditions") or () if isinstance(one, Mapping)]
        self._conditions = {one["type"]: dict(one) for one in conditions if "type" in one}

    # ------------------------------------------------------------ conditions

    def holds(self, kind: str) -> bool:
        """Whether a condition holds."""
        return bool(self._conditions.get(kind, {}).get("status") == "True")

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.holds(SUCCEEDED) or self.holds(FAILED)

    def reason_of(self, kind: str) -> str:
        """The reason of a condition; "" if it was never set."""
        return str(self._conditions.get(kind, {}).get("reason", ""))

    def set_condition(self, kind: str, holds: bool, reason: str, message: str) -> bool:
        """Sets a condition.

        Returns:
            Whether it holds now and did not before, or the other way round.
        """
        old = self._conditions.get(kind)
        if old is None and not holds and kind not in (CREATED, RUNNING):
            return False  # what was never the case need not be denied
        status = "True" if holds else "False"
        turned = old is None or old.get("status") != status
        since = format_time(self.now) if turned or old is None else old.get("lastTransitionTime")
        self._conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": self.generation,
        }
        return turned

    def add_event(self, reason: str, message: str, kind: str = NORMAL) -> None:
        """Announces something."""
        self.events.append(JobEvent(kind, reason, message))

    def report_problems(self, problems: Iterable[Problem]) -> None:
        """Warns of problems, of each one when it comes up."""
        present = {str(problem): problem for problem in problems}
        for text, problem in present.items():
            if text not in self.memory.told:
                self.add_event(problem.reason, text, WARNING)
        self.memory.told = tuple(present)

    # ------------------------------------------------------------ numbers

    @property
    def attempt(self) -> int:
        """How often the whole job was started again."""
        value = self.values.get("attempt")
        return value if isinstance(value, int) else 0

    def count_pods(self, pods: Iterable[PodView], keep_ended: bool = False) -> None:
        """Counts pods by what they do.

        Args:
            pods: all worker pods that there are.
            keep_ended: pods that have ended are counted no lower than before: they are being
                cleaned up.
        """
        pods = tuple(pods)
        active = [pod for pod in pods if not pod.ended and not pod.deleting]
        ended = [pod for pod in pods if pod.ended]
        good = sum(pod.phase == "Succeeded" or pod.exit_code == 0 for pod in ended)
        old = (self.values.get("replicaStatuses") or {}).get("Worker") or {}
        least = old if keep_ended else {}
        self.values["replicas"] = len(active)
        gated = sum(bool(pod.gates) for pod in active)
        self.values["replicaStatuses"] = {
            "Worker": {
                "active": len(active),
                "ready": sum(pod.ready and pod.runs for pod in pods),
                "pending": sum(not pod.runs for pod in active),
                **({"gated": gated} if gated else {}),
                "succeeded": max(good, least.get("succeeded", 0)),
                "failed": max(len(ended) - good, least.get("failed", 0)),
            }
        }

    def count_restarts(self, restarts: Mapping[str, int]) -> None:
        """Adds restarts to those that the job has had."""
        shown = self.values.get("restarts") or {}
        total = {name: shown.get(name, 0) + restarts.get(name, 0) for name in RESTART_CLASSES}
        self.values["restarts"] = total
        self.values["restartCount"] = sum(
            total[name] for name in RESTART_CLASSES if name != "planned"
        )

    def note_fault(self, why: str) -> None:
        """Keeps in mind what went wrong last.

        Args:
            why: for people.
        """
        self.values["lastFault"] = cut(why, LONGEST_REASON)
        self.values["lastFaultTime"] = format_time(self.now)

    def clear_world(self) -> None:
        """No pod trains."""
        if self.values.get("worldSize"):
            self.values["worldSize"] = 0

    def apply_report(self, report: AgentReport, last: bool = False) -> None:
        """Takes over what agents report.

        Their counts begin at 0 with each incarnation of the job, so that what is added is what they
        grew by, or all of them if they shrank.

        Args:
            report: of the present attempt.
            last: the job ends: the step is written, however little has passed.
        """
        if not report.round:
            return  # of a newcomer, which knows nothing of the job: it would count from 0 again
        counts = {name: int(report.restarts.get(name, 0)) for name in RESTART_CLASSES}
        before = self.memory.counted
        began_again = any(counts[name] < before.get(name, 0) for name in RESTART_CLASSES)
        grown = {
            name: n - (0 if began_again else before.get(name, 0)) for name, n in counts.items()
        }
        changed = any(grown.values())
        if changed:
            self.count_restarts(grown)
        if report.fault and any(n for name, n in grown.items() if name != "planned"):
            self.note_fault(report.fault)
        self.memory.counted = {name: n for name, n in counts.items() if n}
        for name, value in (("round", report.round), ("worldSize", report.world)):
            if report.round and self.values.get(name) != value:
                self.values[name], changed = value, True
        # However far it is: the clock may have been set back.
        if changed or last or abs(self.now - self.memory.stepped) >= STATUS_STEP_INTERVAL:
            for name, value in (
                ("step", report.step),
                ("lastCheckpointStep", report.checkpoint_step),
            ):
                if value >= 0 and self.values.get(name) != value:
                    self.values[name], self.memory.stepped = value, math.ceil(self.now)
            if report.goodput >= 0:
                self.values["goodput"] = f"{report.goodput}%"

    # ------------------------------------------------------------ the end

    def _state(self) -> str:
        """The whole in a word: the first of the conditions that tell most."""
        told = (FAILED, SUCCEEDED, SUSPENDED, RESTARTING, RUNNING)
        return next((kind for kind in told if self.holds(kind)), PENDING)

    def build(self) -> dict[str, Any]:
        """The new status."""
        self.values["conditions"] = [
            self._conditions[kind] for kind in CONDITIONS if kind in self._conditions
        ]
        self.values["observedGeneration"] = self.generation
        self.values["state"] = self._state()
        self.values["memory"] = self.memory.kept()
        return self.values
