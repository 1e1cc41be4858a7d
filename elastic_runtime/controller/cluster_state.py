"""Everything that the controller knows of the cluster, by job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.controller import views
from elastic_runtime.controller.decide.job_types import (
    PENDING,
    EtcdView,
    Observed,
    PodView,
    Problem,
)
from elastic_runtime.controller.decide.manifests import etcd_name
from elastic_runtime.controller.decide.status_builder import (
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
)
from elastic_runtime.controller.informer_cache import InformerCache
from elastic_runtime.controller.spec.job_spec import MANAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from elastic_runtime.controller.decide.job_types import AgentReport
    from elastic_runtime.controller.views import Key
    from elastic_runtime.kubernetes.api_client import Json

_ENDED = (SUCCEEDED, FAILED)

# What ``status.state`` may be.
STATES = (PENDING, RUNNING, RESTARTING, SUSPENDED, SUCCEEDED, FAILED)


class ClusterState:
    """Jobs, and what belongs to them: itself the ``Cache`` of an informer of jobs.

    Args:
        changed: called with the job whenever something of it has changed.

    Attributes:
        jobs: the ElasticJobs, as the API server has them.
        pods, services, budgets: what they own; each is a ``Cache`` of an informer.
        reports: what the jobs' agents say.
    """

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self.jobs: dict[Key, Json] = {}
        self.pods: InformerCache[PodView | EtcdView] = InformerCache(views.pod_view, changed)
        self.services: InformerCache[str] = InformerCache(views.service_address, changed)
        self.budgets: InformerCache[int | None] = InformerCache(views.min_available, changed)
        self.reports: dict[Key, AgentReport] = {}

    def update(self, job: Json) -> None:
        """An ElasticJob is there, and looks so; what is older than what is known is ignored."""
        meta = job["metadata"]
        key = meta["namespace"], meta["name"]
        before = self.jobs.get(key)
        if before and before["metadata"]["uid"] == meta["uid"]:
            if int(before["metadata"]["resourceVersion"]) >= int(meta["resourceVersion"]):
                return
        # Who wrote which field is not read here, and it is often half of the object.
        self.jobs[key] = {**job, "metadata": _without(meta, "managedFields")}
        self._changed(key)
        if before is None or _ended(before) != _ended(job):
            self._notify_rivals(key, job)

    def update_known(self, job: Json) -> None:
        """A request of ours was answered with a job, which may have gone before we read that."""
        meta = job["metadata"]
        known = self.jobs.get((meta["namespace"], meta["name"]))
        if known and known["metadata"]["uid"] == meta["uid"]:
            self.update(job)

    def delete(self, job: Json) -> None:
        """An ElasticJob is gone; another one of its name may be there."""
        meta = job["metadata"]
        key = meta["namespace"], meta["name"]
        known = self.jobs.get(key)
        if known and known["metadata"]["uid"] == meta["uid"]:
            del self.jobs[key]
            self.reports.pop(key, None)
            self._changed(key)
            self._notify_rivals(key, known)

    def retain(self, uids: Collection[str], version: int) -> None:
        """No other ElasticJob was there at that version; what is younger may be."""
        for job in list(self.jobs.values()):
            meta = job["metadata"]
            if meta["uid"] not in uids and int(meta["resourceVersion"]) <= version:
                self.delete(job)

    def observe(
        self,
        key: Key,
        problems: Iterable[Problem] = (),
        checked: str = "",
        asides: tuple[Problem, ...] = (),
    ) -> Observed:
        """What is seen of a job that is there.

        Args:
            key: which one.
            problems: what is known beyond that.
            checked: the mark of a pod that was checked just now, and accepted.
            asides: what is known to be wrong, and holds up nothing.
        """
        job = self.jobs[key]
        uid = job["metadata"]["uid"]
        pods = self.pods.owned_by(key, uid).values()
        budgets = self.budgets.owned_by(key, uid)
        rival = self.rival(key)
        return Observed(
            pods=tuple(pod for pod in pods if isinstance(pod, PodView)),
            services=self.services.owned_by(key, uid),
            etcd=next((pod for pod in pods if isinstance(pod, EtcdView)), None),
            pdb=budgets.get(key[1]),
            etcd_guarded=etcd_name(key[1]) in budgets,
            report=self.reports.get(key),
            problems=(*problems, *((_taken(job, rival),) if rival else ())),
            checked=checked,
            asides=asides,
        )

    def orphans(self, key: Key) -> tuple[PodView, ...]:
        """The workers of jobs of a name that are not there any more, or are being deleted."""
        job = self.jobs.get(key)
        stays = job is not None and not job["metadata"].get("deletionTimestamp")
        uid = job["metadata"]["uid"] if job is not None and stays else ""
        return tuple(pod for pod in self.pods.owned_by_others(key, uid) if isinstance(pod, PodView))

    def rival(self, key: Key) -> Key | None:
        """The job that has the same run id at the same endpoint as this one, and came first."""
        job = self.jobs.get(key)
        for other in self._rivals(key, job) if job else ():
            if not _ended(self.jobs[other]) and self._precedence(other) <= self._precedence(key):
                return other
        return None

    def conditions(self) -> Mapping[str, int]:
        """How many jobs have each type of condition."""
        found: dict[str, int] = {}
        for job in self.jobs.values():
            for one in (job.get("status") or {}).get("conditions") or ():
                if one.get("status") == "True":
                    found[one["type"]] = found.get(one["type"], 0) + 1
        return found

    def states(self) -> Mapping[str, int]:
        """How many of the jobs that this controller looks after are in each of ``STATES``.

        One that it has not looked at yet is pending.
        """
        found = dict.fromkeys(STATES, 0)
        for job in self.jobs.values():
            if (job.get("spec") or {}).get("managedBy") in (None, "", MANAGER):
                state = (job.get("status") or {}).get("state")
                found[state if state in STATES else PENDING] += 1
        return found

    def _precedence(self, key: Key) -> tuple[bool, str, str]:
        """Who comes first: a job that has pods, else the older one."""
        meta = self.jobs[key]["metadata"]
        has_pods = bool(self.pods.owned_by(key, meta["uid"]))
        return not has_pods, meta["creationTimestamp"], meta["uid"]

    def _rivals(self, key: Key, job: Json) -> list[Key]:
        rendezvous = _rendezvous_of(job)
        if not all(rendezvous):
            return []
        return [
            k for k, other in self.jobs.items() if k != key and _rendezvous_of(other) == rendezvous
        ]

    def _notify_rivals(self, key: Key, job: Json) -> None:
        for other in self._rivals(key, job):
            self._changed(other)


def _rendezvous_of(job: Json) -> tuple[str, str]:
    spec = job.get("spec") or {}
    return str(spec.get("rdzvEndpoint") or ""), str(spec.get("rdzvId") or "")


def _taken(job: Json, rival: Key) -> Problem:
    message = (
        f"the job {'/'.join(rival)} uses {_rendezvous_of(job)[1]!r} at the same endpoint, and "
        "their workers would take each other for their own: choose another rdzvId, or leave it out"
    )
    return Problem("RunIdTaken", message, "spec.rdzvId", blocks=True)


def _ended(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] in _ENDED and one["status"] == "True" for one in conditions)


def _without(fields: Json, name: str) -> Json:
    return {key: value for key, value in fields.items() if key != name}
