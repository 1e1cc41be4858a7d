"""The little of the Kubernetes API that ``elasticctl`` needs, and its errors in people's words.

Objects are plain dictionaries, as in a manifest.
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from elastic_runtime.cli.kube.cluster_access import MERGE, Access, Connection, Refused, check_name
from elastic_runtime.controller.decide.job_spec import GROUP, PLURAL, VERSION
from elastic_runtime.controller.decide.manifests import GROUP_LABEL, JOB_LABEL
from elastic_runtime.errors import ClusterUnreachable, ElasticError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INSTALL = (
    "kubectl apply --server-side -f deploy/crd.yaml, and the controller with kubectl apply "
    "--server-side -k deploy/kustomize/overlays/cluster"
)

Object = dict[str, Any]

_PAGE = 500
_DELETE = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
_PATIENCE = 30.0  # seconds between two pieces of a log that is there
_SILENCE = 3600.0  # the same while it is written: but a connection may be lost without a word


class NoSuchJob(UsageError):
    """There is no ElasticJob of this name."""


class NotAllowed(ClusterUnreachable):
    """The API server answers, but not to us; that trying again does not change."""


class _NoResource(UsageError):
    """ElasticJobs are not installed in the cluster."""


class Cluster:
    """Jobs, pods, events and logs in one namespace.

    Args:
        access: which cluster, and which namespace.

    Raises:
        UsageError: there is no usable configuration, or the extra is not installed.
    """

    def __init__(self, access: Access) -> None:
        self._connection = Connection(access)
        self._server = self._connection.server
        self.namespace = self._connection.namespace

    def jobs(self, everywhere: bool = False) -> list[Object]:
        """All jobs, in the namespace or in all of them, by namespace and name."""
        path = f"/apis/{GROUP}/{VERSION}/{PLURAL}" if everywhere else self._jobs
        found: list[Object] = []
        query: dict[str, Any] = {"limit": _PAGE}
        while True:
            with self._asking("list elasticjobs", everywhere=everywhere):
                answer = self._connection.send("GET", path, query)
            found += answer.get("items") or []
            query["continue"] = (answer.get("metadata") or {}).get("continue")
            if not query["continue"]:
                return sorted(found, key=_sort_key)

    def job(self, name: str) -> Object:
        """One job.

        Raises:
            NoSuchJob: it is not there.
        """
        with self._asking("get elasticjobs", name):
            job: Object = self._connection.send("GET", self._path(name))
            return job

    def create(self, job: Object) -> Object:
        """Makes a job.

        Raises:
            UsageError: there is one of that name already, or it is refused.
        """
        with self._asking("create elasticjobs", job["metadata"].get("name", "")):
            made: Object = self._connection.send("POST", self._jobs, body=job)
            return made

    def change(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merges a patch into a job."""
        with self._asking("patch elasticjobs", name):
            self._connection.send("PATCH", self._path(name), body=patch, content=MERGE)

    def scale(self, name: str, replicas: int) -> None:
        """Sets the number of replicas through the ``scale`` subresource."""
        patch = {"spec": {"replicas": replicas}}
        with self._asking("patch elasticjobs/scale", name):
            self._connection.send("PATCH", self._path(name) + "/scale", body=patch, content=MERGE)

    def delete(self, name: str) -> None:
        """Deletes a job; what it owns follows."""
        with self._asking("delete elasticjobs", name):
            self._connection.send("DELETE", self._path(name), body=_DELETE)

    def pods(self, name: str) -> list[Object]:
        """All pods of a job, its etcd included."""
        selector = f"{GROUP_LABEL}={GROUP},{JOB_LABEL}={check_name('job', name)}"
        return self._list("pods", {"labelSelector": selector})

    def events(self, kind: str, name: str = "") -> list[Object]:
        """Events about objects of a kind, or about one of them."""
        selector = f"involvedObject.kind={kind}" + (f",involvedObject.name={name}" if name else "")
        return self._list("events", {"fieldSelector": selector})

    def log(
        self,
        pod: str,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
    ) -> Iterator[bytes]:
        """The lines of a container's log, each with its time in front, without line ends.

        Args:
            pod, container: whose.
            follow: go on until the container has ended.
            tail: only the last ones.
            since: only those from this time on, to the second.

        Raises:
            UsageError: there is no log.
            ClusterUnreachable: also in the middle of it.
        """
        path = f"/api/v1/namespaces/{self.namespace}/pods/{quote(pod, safe='')}/log"
        query = {
            "container": container,
            "follow": "true" if follow else None,
            "timestamps": "true",
            "tailLines": tail,
            "sinceTime": since,
        }
        with self._asking("get pods/log", pod):
            yield from self._connection.lines(path, query, _SILENCE if follow else _PATIENCE)

    @property
    def _jobs(self) -> str:
        return f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}"

    def _path(self, name: str) -> str:
        return f"{self._jobs}/{check_name('job', name)}"

    def _list(self, plural: str, query: Mapping[str, str]) -> list[Object]:
        with self._asking(f"list {plural}"):
            path = f"/api/v1/namespaces/{self.namespace}/{plural}"
            items: list[Object] = self._connection.send("GET", path, query).get("items") or []
            return items

    @contextmanager
    def _asking(self, what: str, name: str = "", everywhere: bool = False) -> Iterator[None]:
        """Says in our words why a request is refused."""
        try:
            yield
        except Refused as error:
            raise self._refusal(error, what, name, everywhere) from None

    def _refusal(self, error: Refused, what: str, name: str, everywhere: bool) -> ElasticError:
        where = "in all namespaces" if everywhere else f"in the namespace {self.namespace!r}"
        match error.code:
            case 401:
                return NotAllowed(
                    f"the API server {self._server} does not accept these credentials "
                    f"({error.why}): log in again, or choose another --context"
                )
            case 403 if "quota" in error.why:
                return UsageError(f"a quota of the namespace forbids it: {error.why}")
            case 403:
                return NotAllowed(
                    f"you may not {what} {where}: {error.why}. Whoever administers the cluster can "
                    "bind you a Role that allows it"
                )
            case 404 if "elasticjobs" in what:
                return self._absent(what, name)
            case 404:
                return UsageError(f"there is no {name!r} {where}: {error.why}")
            case 409 if what.startswith("create"):
                return UsageError(
                    f"there is an ElasticJob {name!r} {where} already: choose another --name, or "
                    f"remove it with elasticctl delete {name}"
                )
            case 400 | 409 | 422:
                return UsageError(f"the API server refuses to {what} {name!r}: {error.why}")
        return ClusterUnreachable(
            f"the API server {self._server} failed with {error.code}: {error.why}; try again"
        )

    def _absent(self, what: str, name: str) -> UsageError:
        """Which of three things is not there: the resource, the namespace or the job."""
        if what.startswith("list"):
            return _NoResource(
                f"the cluster {self._server} knows no ElasticJobs: install them with {INSTALL}"
            )
        try:
            names = [job["metadata"]["name"] for job in self.jobs()]
        except _NoResource as error:
            return error
        except ElasticError:
            names = []  # whoever may get one job may not be allowed to list them
        if what.startswith("create"):
            return UsageError(
                f"there is no namespace {self.namespace!r}: kubectl create namespace "
                f"{self.namespace}, or choose another with -n"
            )
        similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = (
            f": did you mean {' or '.join(map(repr, similar))}?"
            if similar
            else "; elasticctl jobs lists those that there are"
        )
        return NoSuchJob(
            f"there is no ElasticJob {name!r} in the namespace {self.namespace!r}{hint}"
        )


def _sort_key(job: Mapping[str, Any]) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
