"""A thin client of the Kubernetes API: only what we need of it, and nothing hidden.

Objects are plain dictionaries, as in a manifest.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from elastic_runtime import __version__
from elastic_runtime.errors import UsageError
from elastic_runtime.kubernetes.api_errors import NO_ANSWER, NOT_KUBERNETES, ApiError
from elastic_runtime.limits import API_CONNECT_TIMEOUT, API_REQUEST_TIMEOUT, WATCH_SILENCE_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from elastic_runtime.kubernetes.api_resources import Resource
    from elastic_runtime.kubernetes.cluster_access import ClusterCredentials

Json = dict[str, Any]

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
# More at once does not make a server faster, and other clients want to be served too.
_CONNECTIONS = 16
# Objects in one answer: a thousand pods at once would be most of the controller's memory.
_PAGE = 100


class _StrangerError(ValueError):
    """What has answered is something else than an API server."""


class ApiClient:
    """Asks the API server.

    It gives no answer of anything else for the API server's, follows no redirect, and repeats a
    request only when its credentials have run out.

    Args:
        login: gives the credentials; asked again when they are no longer accepted, as those
            of a service account are replaced every hour.
        name: of the program, for the server's logs and for the fields that it writes.
        counted: called with the verb and the answer's code (0: none) of every request.

    Attributes:
        credentials: that are shown at present.

    Raises:
        UsageError: there are no credentials.
    """

    def __init__(
        self,
        login: Callable[[], ClusterCredentials],
        name: str,
        counted: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._login, self._name, self._counted = login, name, counted
        self.credentials = login()
        self._logging_in = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            headers={"User-Agent": f"{self._name}/{__version__}"},
            timeout=aiohttp.ClientTimeout(
                total=API_REQUEST_TIMEOUT, sock_connect=API_CONNECT_TIMEOUT
            ),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    # ------------------------------------------------------------ objects

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Reads an object, a list or a document."""
        return await self._ask("GET", path, query=query)

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, limit: int = _PAGE
    ) -> AsyncIterator[Json]:
        """Reads a list, part by part; the metadata of the last one is that of the whole.

        Args:
            path, query: of the list.
            limit: objects in one part.
        """
        asked = {**(query or {}), "limit": str(limit)}
        while True:
            page = await self.get(path, asked)
            yield page
            asked["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not asked["continue"]:
                return

    async def create(
        self, resource: Resource, namespace: str, item: Mapping[str, Any], strict: bool = False
    ) -> Json:
        """Creates an object; a conflict if there is one of that name.

        Args:
            resource: its kind.
            namespace: where it is to be.
            item: the object.
            strict: a field that is not known is refused, and not dropped.
        """
        query = {"fieldManager": self._name}
        if strict:
            query["fieldValidation"] = "Strict"
        return await self._ask("POST", resource.path(namespace), item, query=query)

    async def check(self, resource: Resource, namespace: str, item: Mapping[str, Any]) -> None:
        """Asks whether an object could be created just so: nothing is kept of it.

        Raises:
            ApiError: also where a field is not known, or is there twice.
        """
        query = {"fieldManager": self._name, "dryRun": "All", "fieldValidation": "Strict"}
        await self._ask("POST", resource.path(namespace), item, query=query)

    async def replace(
        self, resource: Resource, namespace: str, name: str, item: Mapping[str, Any]
    ) -> Json:
        """Puts an object in the place of the one whose version it carries."""
        return await self._ask("PUT", resource.path(namespace, name), item)

    async def apply(
        self, resource: Resource, namespace: str, name: str, item: Mapping[str, Any]
    ) -> Json:
        """Server-side apply: makes an object so, whether it is there or not."""
        query = {"fieldManager": self._name, "force": "true"}
        return await self._ask("PATCH", resource.path(namespace, name), item, _APPLY_PATCH, query)

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        sub: str = "",
    ) -> Json:
        """Merges a patch (RFC 7396) into an object, or into its subresource ``sub``."""
        query = {"fieldManager": self._name}
        path = resource.path(namespace, name, sub)
        return await self._ask("PATCH", path, patch, _MERGE_PATCH, query)

    async def merge_strategically(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Json:
        """Merges a patch into an object whose lists the server knows how to merge.

        Args:
            resource, namespace, name: the object.
            patch: of which ``metadata.uid`` is a precondition.
        """
        query = {"fieldManager": self._name}
        path = resource.path(namespace, name)
        return await self._ask("PATCH", path, patch, _STRATEGIC_PATCH, query)

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

    # ------------------------------------------------------------ streams

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
        async with self._answer("WATCH", path, asked, silence=WATCH_SILENCE_TIMEOUT) as answer:
            with suppress(aiohttp.SocketTimeoutError):
                async for lines in _lines(answer):
                    for line in filter(None, lines):
                        yield _event(_parsed(line), f"WATCH {path}")

    async def lines(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncGenerator[list[bytes], None]:
        """Reads text as it comes: each time the lines that came together, without line ends.

        Args:
            path, query: as above.
            silence: seconds that may pass between two pieces.

        Raises:
            ApiError: it is refused, or broke.
        """
        async with self._answer("GET", path, query, silence=silence) as answer:
            async for lines in _lines(answer):
                yield lines

    # ------------------------------------------------------------ one request

    async def _ask(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        data = None if body is None else json.dumps(body).encode()
        async with self._answer(verb, path, query, data, content) as answer:
            return _parsed(await answer.read())

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None = None,
        content: str = _JSON,
        silence: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is no refusal, to be read within; ``verb`` is HTTP's, or ``WATCH``."""
        where = f"{verb} {path}"
        more: dict[str, Any] = {"params": query, "data": data}
        if data is not None:
            more["headers"] = {"Content-Type": content}
        if silence is not None:
            more["timeout"] = aiohttp.ClientTimeout(
                total=None, sock_connect=API_CONNECT_TIMEOUT, sock_read=silence
            )
        try:
            async with await self._accepted(verb, path, more) as answer:
                if answer.content_type == "text/html":
                    raise _StrangerError(f"it answers with a web page and HTTP {answer.status}")
                if 300 <= answer.status < 400:
                    raise _StrangerError(f"it answers with a redirect, HTTP {answer.status}")
                if answer.status >= 400:
                    raise await _refusal(answer, where)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as broken:
            raise self._without_answer(broken, where) from broken

    async def _accepted(
        self, verb: str, path: str, more: Mapping[str, Any]
    ) -> aiohttp.ClientResponse:
        """The answer; to a second request, with fresh credentials, if those are not accepted."""
        shown = self.credentials
        answer = await self._send(shown, verb, path, more)
        if answer.status == 401:
            answer.release()
            await self._log_in_again(shown, f"{verb} {path}")
            answer = await self._send(self.credentials, verb, path, more)
        return answer

    async def _send(
        self, shown: ClusterCredentials, verb: str, path: str, more: Mapping[str, Any]
    ) -> aiohttp.ClientResponse:
        assert self._session, "the client is used outside of its block"
        headers = {"Accept": "application/json, */*", **shown.headers, **more.get("headers", {})}
        options = {**more, "headers": headers, "ssl": True if shown.tls is None else shown.tls}
        if shown.tls_name:
            options["server_hostname"] = shown.tls_name
        if shown.proxy:
            options["proxy"] = shown.proxy
        http_verb = "GET" if verb == "WATCH" else verb
        try:
            answer = await self._session.request(
                http_verb, shown.server + path, allow_redirects=False, **options
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            self._counted(verb, 0)
            raise
        self._counted(verb, answer.status)
        return answer

    async def _log_in_again(self, refused: ClusterCredentials, where: str) -> None:
        """Replaces credentials that were refused, once for all who have met that."""
        async with self._logging_in:
            if self.credentials is not refused:
                return
            try:  # it may run a program that logs us in
                self.credentials = await asyncio.to_thread(self._login)
            except UsageError as error:
                message = f"the credentials are not accepted, and there are no others: {error}"
                raise ApiError(401, "Unauthorized", message, where) from None

    def _without_answer(self, error: Exception, where: str) -> ApiError:
        if "WRONG_VERSION_NUMBER" in str(error):
            error = _StrangerError("it does not speak TLS, as https:// wants")
        if isinstance(error, _StrangerError):
            said = f"what answers at {self.credentials.server} is no API server of Kubernetes"
            return ApiError(0, NOT_KUBERNETES, f"{said}: {error}", where)
        said = f"the API server {self.credentials.server} does not answer ({_cause(error)})"
        return ApiError(0, NO_ANSWER, said, where)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield whole
    if rest:
        yield [rest]


def _event(event: Json, where: str) -> Json:
    """An event of a watch; the server tells errors as one too."""
    if event.get("type") == "ERROR":
        status = event["object"]
        code, reason = int(status.get("code") or 500), str(status.get("reason") or "")
        raise ApiError(code, reason, str(status.get("message") or reason), where)
    return event


async def _refusal(answer: aiohttp.ClientResponse, where: str) -> ApiError:
    """What an API server says about a request that it refuses."""
    try:
        status = json.loads(await answer.read())
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        reason, message = "", ""
    message = message or f"the server answered {answer.status} {answer.reason}"
    return ApiError(answer.status, reason, message, where)


def _parsed(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        raise _StrangerError("its answer is no JSON") from None
    if not isinstance(found, dict):
        raise _StrangerError("its answer is no object")
    return found


def _cause(error: Exception) -> str:
    """Why there was no answer, without the client's words around it."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    number = inner.errno if isinstance(inner, ConnectionError) or type(inner) is OSError else None
    return os.strerror(number) if number else str(inner) or repr(inner)  # asyncio adds the address
