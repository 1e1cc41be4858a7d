"""A thin client of the Kubernetes API: only what the controller needs, and nothing hidden."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from elastic_runtime.errors import ElasticError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

Json = dict[str, Any]

FIELD_MANAGER = "elastic-controller"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_SECONDS = 20.0
# More at once does not make a server faster, and other clients want to be served too.
_CONNECTIONS = 16
# A watch hears a bookmark every minute, or nothing at all for many minutes where nothing has
# happened to objects of its kind since the API server started.
_SILENCE = 120.0


class ApiError(ElasticError):
    """The API server refused a request, or did not answer it.

    Args:
        code: the HTTP status; 0 if there was no answer at all.
        reason: one word of the server's, such as ``Forbidden``.
        message: what it says about it.
        where: the request, for the message.
    """

    def __init__(self, code: int, reason: str, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code, self.reason, self.message = code, reason, message

    @property
    def gone(self) -> bool:
        """What it is about does not exist (any more)."""
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """It is not as we thought: look again."""
        return self.code == 409

    @property
    def taken(self) -> bool:
        """There is an object of that name already."""
        return self.conflict and self.reason == "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The version to watch from is too old."""
        return self.code == 410

    @property
    def passing(self) -> bool:
        """The same request may well succeed in a while."""
        return self.code in (0, 401, 408, 429) or self.code >= 500

    @property
    def quota(self) -> bool:
        """A ResourceQuota forbids it."""
        return self.code == 403 and "exceeded quota" in self.message


@dataclass(frozen=True)
class Access:
    """Where the API server is, and what it is shown.

    Attributes:
        server: its URL.
        headers: credentials.
        tls: how to check who it is; ``None`` for the ordinary check.
        namespace: the one that the credentials belong to, "" if that is not said.
    """

    server: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    namespace: str = ""


@dataclass(frozen=True)
class Resource:
    """A kind of objects: how their paths begin, and what they are called there.

    Attributes:
        root: ``/api/v1`` or ``/apis/<group>/<version>``.
        plural: ``pods``.
    """

    root: str
    plural: str

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of an object, of its subresource, or of all of a namespace or cluster."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        parts = [f"{self.root}{inside}", self.plural, name, sub]
        return "/".join(part for part in parts if part)


PODS = Resource("/api/v1", "pods")
SERVICES = Resource("/api/v1", "services")
EVENTS = Resource("/api/v1", "events")
BUDGETS = Resource("/apis/policy/v1", "poddisruptionbudgets")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
JOBS = Resource("/apis/elastic.pytorch.org/v1alpha1", "elasticjobs")
BY_KIND = {"Pod": PODS, "Service": SERVICES, "PodDisruptionBudget": BUDGETS}


class Api:
    """Asks the API server.

    Args:
        login: gives the credentials; asked again when they are not accepted any more, as those
            of a service account are replaced every hour.
        counted: told the verb and the answer's code (0: none) of every request.
    """

    def __init__(
        self, login: Callable[[], Access], counted: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self._login, self._counted = login, counted
        self.access = login()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Reads an object, a list or a document."""
        return await self._ask("GET", path, query=query)

    async def create(self, resource: Resource, namespace: str, item: Mapping[str, Any]) -> Json:
        """Creates an object; a conflict if there is one of that name."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._ask("POST", resource.path(namespace), item, query=query)

    async def replace(
        self, resource: Resource, namespace: str, name: str, item: Mapping[str, Any]
    ) -> Json:
        """Puts an object in the place of the one whose version it carries."""
        return await self._ask("PUT", resource.path(namespace, name), item)

    async def apply(
        self, resource: Resource, namespace: str, name: str, item: Mapping[str, Any]
    ) -> Json:
        """Server-side apply: makes an object so, whether it is there or not."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._ask("PATCH", resource.path(namespace, name), item, _APPLY, query)

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Json:
        """Merges a patch into an object's status."""
        query = {"fieldManager": FIELD_MANAGER}
        path = resource.path(namespace, name, "status")
        return await self._ask("PATCH", path, patch, _MERGE, query)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str = "",
        grace: int | None = None,
    ) -> Json:
        """Deletes an object, and what it owns after it.

        Args:
            resource: its kind.
            namespace: where it is.
            name: which one.
            uid: nothing is done if it has another one.
            grace: seconds that a pod has; ``None``: what it says itself.
        """
        options: Json = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self._ask("DELETE", resource.path(namespace, name), options)

    async def watch(
        self, path: str, version: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[Json]:
        """What happens to a list of objects after ``version``, bookmarks included.

        Ends when the server ends it, or has been silent for so long that the connection may be
        lost; neither is a failure.

        Raises:
            ApiError: it is refused, or broke.
        """
        asked = {**(query or {}), "watch": "true", "allowWatchBookmarks": "true"}
        asked["resourceVersion"] = version
        where = f"watch of {path}"
        silence = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=_SILENCE)
        try:
            async with self._started("GET", path, asked, timeout=silence) as answer:
                self._counted("WATCH", answer.status)
                if answer.status >= 400:
                    raise await _refusal(answer, where)
                rest = b""
                with suppress(aiohttp.SocketTimeoutError):
                    async for chunk in answer.content.iter_any():
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in filter(None, lines):
                            yield _said(json.loads(line), where)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as broken:
            raise ApiError(0, "NoAnswer", _words(broken), where) from broken

    async def _ask(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """One request; once more with fresh credentials if these are not accepted."""
        where = f"{verb} {path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data else {}
        for again in (True, False):
            try:
                async with self._started(verb, path, query, data=data, headers=headers) as answer:
                    self._counted(verb, answer.status)
                    if answer.status < 400:
                        found: Json = json.loads(await answer.read())
                        return found
                    error = await _refusal(answer, where)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as broken:
                self._counted(verb, 0)
                raise ApiError(0, "NoAnswer", _words(broken), where) from broken
            if error.code != 401 or not again:
                raise error
            self.access = self._login()
        raise AssertionError("the second try returns or raises")

    def _started(self, verb: str, path: str, query: Mapping[str, str] | None, **more: Any) -> Any:
        assert self._session, "the client is used outside of its block"
        headers = {**self.access.headers, "Accept": "application/json", **more.pop("headers", {})}
        tls = self.access.tls if self.access.tls is not None else True
        url = self.access.server.rstrip("/") + path
        return self._session.request(verb, url, params=query, headers=headers, ssl=tls, **more)


async def _refusal(answer: aiohttp.ClientResponse, where: str) -> ApiError:
    try:
        status = json.loads(await answer.read())
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        reason, message = "", ""
    said = message or f"the server answered {answer.status} {answer.reason}"
    return ApiError(answer.status, reason, said, where)


def _said(event: Json, where: str) -> Json:
    """An event of a watch; the server tells errors as one too."""
    if event["type"] == "ERROR":
        status = event["object"]
        code, reason = int(status.get("code") or 500), str(status.get("reason") or "")
        raise ApiError(code, reason, str(status.get("message") or reason), where)
    return event


def _words(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "the answer is no JSON: something that is not the API server has answered"
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
