"""What ``elasticctl`` asks of a cluster, and the API server's refusals in people's words.

Objects are plain dictionaries, as in a manifest.
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeVar

from elastic_runtime.controller.decide.manifests import GROUP_LABEL, JOB_LABEL
from elastic_runtime.controller.decide.rollout import check_pod, refusal
from elastic_runtime.controller.spec.job_spec import API_GROUP, JOBS, JobSpec
from elastic_runtime.errors import ClusterUnreachable, ElasticError, UsageError
from elastic_runtime.kubernetes.api_errors import NOT_KUBERNETES, ApiError
from elastic_runtime.kubernetes.api_resources import EVENTS, PODS
from elastic_runtime.kubernetes.cluster_access import check_name, login, need
from elastic_runtime.limits import FOLLOWED_LOG_SILENCE, LOG_SILENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping

    from elastic_runtime.kubernetes.api_resources import Resource
    from elastic_runtime.kubernetes.cluster_access import ClusterRef

INSTALL = (
    "kubectl apply --server-side -f deploy/crd.yaml, and the controller with kubectl apply "
    "--server-side -k deploy/kustomize/overlays/cluster"
)

Object = dict[str, Any]

_T = TypeVar("_T")

_PAGE = 500


class _Verb(StrEnum):
    """What may be done with objects, in the words of Kubernetes' Roles."""

    LIST = "list"
    GET = "get"
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True)
class _Request:
    """What is asked of the API server, for a message that says why it was refused.

    Attributes:
        verb: what is to be done.
        what: with objects of this kind, or with a part of them.
        name: of the object, or "".
        everywhere: in all namespaces.
    """

    verb: _Verb
    what: str
    name: str = ""
    everywhere: bool = False


_JOBS = JOBS.plural
_CLOSE_SECONDS = 5.0


class NoSuchJob(UsageError):
    """There is no ElasticJob of this name."""


class NotAllowed(ClusterUnreachable):
    """The API server answers, but not to us; that trying again does not change."""


class _NoResource(UsageError):
    """ElasticJobs are not installed in the cluster."""


class JobClient:
    """Jobs, pods, events and logs in one namespace; to be closed.

    The client is that of the controller, which runs in an event loop; here it has a loop in a
    thread of its own, so that any thread may ask.

    Args:
        ref: which cluster, and which namespace.

    Attributes:
        namespace: the one that is asked about.

    Raises:
        UsageError: there are no usable credentials, or the extra is not installed.
    """

    def __init__(self, ref: ClusterRef) -> None:
        need("aiohttp")
        from elastic_runtime.kubernetes.api_client import ApiClient

        self._client = ApiClient(lambda: login(ref), "elasticctl")
        self._server = self._client.credentials.server
        self.namespace = self._client.credentials.namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all requests; in a thread that waits for one it fails."""
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ended.result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()

    def jobs(self, everywhere: bool = False) -> list[Object]:
        """All jobs, in the namespace or in all of them, by namespace and name."""
        with self._asking(_Request(_Verb.LIST, _JOBS, everywhere=everywhere)):
            found = self._run(self._list(JOBS.path("" if everywhere else self.namespace)))
        return sorted(found, key=_sort_key)

    def job(self, name: str) -> Object:
        """One job.

        Raises:
            NoSuchJob: it is not there.
        """
        path = JOBS.path(self.namespace, check_name("job", name))
        with self._asking(_Request(_Verb.GET, _JOBS, name)):
            return self._run(self._client.get(path))

    def create(self, job: Object) -> Object:
        """Makes a job.

        Raises:
            UsageError: there is one of that name already, or it is refused.
        """
        with self._asking(_Request(_Verb.CREATE, _JOBS, job["metadata"].get("name", ""))):
            return self._run(self._client.create(JOBS, self.namespace, job))

    def check(self, job: Object) -> None:
        """Has the API server check the pods that a job would have, as far as it lets us.

        It drops a field that it does not know from what is created, and says so to nobody.

        Raises:
            UsageError: a field of the template is unknown, or cannot be what it says.
        """
        metadata = {"namespace": self.namespace, **job["metadata"]}
        pod = check_pod(JobSpec.of({**job, "metadata": metadata}))
        del pod["metadata"]["ownerReferences"]  # there is no job yet
        try:
            self._run(self._client.check(PODS, self.namespace, pod))
        except ApiError as error:
            if error.malformed:
                raise UsageError(str(refusal(error.message))) from None
            # Who may create jobs may not create pods everywhere; the controller checks it then.

    def change(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merges a patch into a job."""
        self._merge(name, patch)

    def scale(self, name: str, replicas: int) -> None:
        """Sets the number of replicas through the ``scale`` subresource."""
        self._merge(name, {"spec": {"replicas": replicas}}, "scale")

    def delete(self, name: str) -> None:
        """Deletes a job; what it owns follows."""
        with self._asking(_Request(_Verb.DELETE, _JOBS, check_name("job", name))):
            self._run(self._client.delete(JOBS, self.namespace, name))

    def pods(self, name: str) -> list[Object]:
        """All pods of a job, its etcd included."""
        selector = f"{GROUP_LABEL}={API_GROUP},{JOB_LABEL}={check_name('job', name)}"
        return self._select(PODS, {"labelSelector": selector})

    def events(self, kind: str, name: str = "") -> list[Object]:
        """Events about objects of a kind, or about one of them."""
        selector = f"involvedObject.kind={kind}" + (f",involvedObject.name={name}" if name else "")
        return self._select(EVENTS, {"fieldSelector": selector})

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
            follow: continue until the container has ended.
            tail: only the last ones.
            since: only those from this time on, to the second.

        Raises:
            UsageError: there is no log.
            ClusterUnreachable: also in the middle of it.
        """
        wanted = {
            "container": container,
            "follow": "true" if follow else None,
            "timestamps": "true",
            "tailLines": None if tail is None else str(tail),
            "sinceTime": since,
        }
        query = {key: value for key, value in wanted.items() if value is not None}
        silence = FOLLOWED_LOG_SILENCE if follow else LOG_SILENCE
        with self._asking(_Request(_Verb.GET, "pods/log", pod)):
            parts = self._client.lines(PODS.path(self.namespace, pod, "log"), query, silence)
            try:
                while lines := self._run(_next(parts)):
                    yield from lines
            finally:
                self._run(_close(parts))

    # ------------------------------------------------------------ requests

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Does something in the loop, and waits for it here.

        Raises:
            ClusterUnreachable: the cluster was closed meanwhile, by another thread.
        """
        if self._loop.is_closed():
            work.close()
            raise ClusterUnreachable("the connection was closed")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError:
            raise ClusterUnreachable("the connection was closed") from None

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__()

    async def _list(self, path: str, query: Mapping[str, str] | None = None) -> list[Object]:
        pages = self._client.pages(path, query, _PAGE)
        return [item async for page in pages for item in page.get("items") or ()]

    def _select(self, resource: Resource, query: Mapping[str, str]) -> list[Object]:
        with self._asking(_Request(_Verb.LIST, resource.plural)):
            return self._run(self._list(resource.path(self.namespace), query))

    def _merge(self, name: str, patch: Mapping[str, Any], part: str = "") -> None:
        what = f"{_JOBS}/{part}" if part else _JOBS
        with self._asking(_Request(_Verb.PATCH, what, check_name("job", name))):
            self._run(self._client.merge(JOBS, self.namespace, name, patch, part))

    # ------------------------------------------------------------ refusals
    @contextmanager
    def _asking(self, request: _Request) -> Iterator[None]:
        """Says in our words why a request is refused."""
        try:
            yield
        except ApiError as error:
            raise self._refusal(error, request) from None

    def _refusal(self, error: ApiError, request: _Request) -> ElasticError:
        name, asked = request.name, f"{request.verb} {request.what}"
        namespace = f"in the namespace {self.namespace!r}"
        where = "in all namespaces" if request.everywhere else namespace
        match error.code:
            case 0 if error.reason == NOT_KUBERNETES:
                return ClusterUnreachable(
                    f"{error.message}; is this the right kubeconfig and --context?"
                )
            case 0:
                return ClusterUnreachable(
                    f"{error.message}: is the cluster up, and is this the right kubeconfig and "
                    "--context?"
                )
            case 401:
                return NotAllowed(
                    f"the API server {self._server} does not accept these credentials "
                    f"({error.message}): log in again, or choose another --context"
                )
            case 403 if "quota" in error.message:
                return UsageError(f"a quota of the namespace forbids it: {error.message}")
            case 403:
                return NotAllowed(
                    f"you may not {asked} {where}: {error.message}. An administrator of the "
                    "cluster can bind you a Role that allows it"
                )
            case 404 if request.what.startswith(_JOBS):
                return self._absent(request.verb, name)
            case 404:
                return UsageError(f"there is no {name!r} {where}: {error.message}")
            case 409 if request.verb is _Verb.CREATE:
                return UsageError(
                    f"there is an ElasticJob {name!r} {where} already: choose another --name, or "
                    f"remove it with elasticctl delete {name}"
                )
            case 400 | 409 | 422:
                return UsageError(f"the API server refuses to {asked} {name!r}: {error.message}")
        return ClusterUnreachable(
            f"the API server {self._server} failed with {error.code}: {error.message}; try again"
        )

    def _absent(self, verb: _Verb, name: str) -> UsageError:
        """Which of three things is not there: the resource, the namespace or the job."""
        if verb is _Verb.LIST:
            return _NoResource(
                f"the cluster {self._server} knows no ElasticJobs: install them with {INSTALL}"
            )
        try:
            names = [job["metadata"]["name"] for job in self.jobs()]
        except _NoResource as error:
            return error
        except ElasticError:
            names = []  # a user who may get one job may not be allowed to list them
        if verb is _Verb.CREATE:
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


async def _next(parts: AsyncIterator[list[bytes]]) -> list[bytes]:
    return await anext(parts, [])


async def _close(parts: AsyncGenerator[list[bytes], None]) -> None:
    await parts.aclose()


def _sort_key(job: Mapping[str, Any]) -> tuple[str, str]:
    metadata = job["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
