"""The fake API server's HTTP: paths, verbs, watches, and what a test wants to go wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from tests.kube import patches
from tests.kube.disruptions import evict
from tests.kube.kinds import POD, Catalogue, Kind
from tests.kube.store import Change, Object, Refusal, Store, key_of, now
from tests.kube.strictness import check_strictly

if TYPE_CHECKING:
    from collections.abc import Callable

_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)
# So often a quiet watch says how far it is; the real server does so every minute.
_BOOKMARK_SECONDS = 20.0


@dataclass(frozen=True)
class Request:
    """A request, as the server understands it.

    Attributes:
        verb: ``get``, ``list``, ``watch``, ``create``, ``update``, ``patch`` or ``delete``.
        kind: of what it is about.
        namespace: "" for all.
        name: "" for all.
        sub: the subresource, or "".
        query: what comes after the question mark.
    """

    verb: str
    kind: Kind
    namespace: str
    name: str
    sub: str
    query: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How it is counted: ``patch elasticjobs/status``."""
        return f"{self.verb} {self.kind.plural}" + (f"/{self.sub}" if self.sub else "")


@dataclass
class Trouble:
    """Something that is to go wrong.

    Attributes:
        meets: which requests it befalls.
        refusal: what they are answered.
        times: how often; it wears off then. ``None``: until it is taken away.
    """

    meets: Callable[[Request], bool]
    refusal: Refusal
    times: int | None = None


class ApiServer:
    """Serves a store over HTTP.

    Attributes:
        counts: the requests so far, by ``Request.label``; others by verb and path.
        troubles: what goes wrong at present.
        token: if not "", what clients must show.
        logs: what containers have written, by namespace and pod.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.catalogue = Catalogue()
        self.counts: Counter[str] = Counter()
        self.troubles: list[Trouble] = []
        self.token = ""
        self.logs: dict[tuple[str, str], str] = {}
        self.url = ""
        self._streams: set[asyncio.Task[Any]] = set()
        self._wakers: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: web.AppRunner | None = None
        store.listeners.append(self._on_change)

    async def start(self, port: int = 0) -> None:
        """Begins to listen on 127.0.0.1."""
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=16 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Ends all connections."""
        self.break_streams()
        if self._runner:
            await self._runner.cleanup()

    def break_streams(self) -> None:
        """Breaks every watch, in the middle of its stream."""
        for task in tuple(self._streams):
            if self._loop:
                self._loop.call_soon_threadsafe(task.cancel)

    def wake(self) -> None:
        """Makes all streams look again; from any thread."""
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def _on_change(self, _: Change) -> None:
        self.wake()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        try:
            if self.token and http.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            request = self._understood(http)
            if request is None:
                return self._document(http)
            with self.store.lock:
                self.counts[request.label] += 1
            self._meet_trouble(request)
            if request.verb == "watch":
                return await self._watch(http, request)
            if request.sub == "log":
                return await self._log(http, request)
            body = await self._body(http)
            code, answer = self._answer(request, body, http.content_type)
            return _json(answer, code)
        except Refusal as refusal:
            return _json(refusal.status(), refusal.code)

    # Finding out what is wanted

    def _understood(self, http: web.Request) -> Request | None:
        found = _PATH.match(http.path)
        if not found:
            return None
        group, version = found["group"] or "", found["version"] or "v1"
        kind = self.catalogue.find(group, version, found["plural"])
        if kind is None or (found["sub"] and found["sub"] not in kind.subresources):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        name, query = found["name"] or "", dict(http.query)
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        verb = verbs.get(http.method) or ("get" if name else "list")
        if verb == "list" and query.get("watch") in ("1", "true", "True"):
            verb = "watch"
        return Request(verb, kind, found["namespace"] or "", name, found["sub"] or "", query)

    def _document(self, http: web.Request) -> web.Response:
        parts = http.path.strip("/").split("/")
        if parts[0] != "fake":
            with self.store.lock:
                self.counts[f"{http.method.lower()} {http.path}"] += 1
        known: dict[str, Any] = {
            "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0-fake"},
            "/fake/counts": dict(self.counts),  # not Kubernetes': for another process
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": self.catalogue.groups(),
        }
        answer = known.get(http.path.rstrip("/"))
        if parts[0] == "api" and len(parts) == 2:
            answer = self.catalogue.resources("", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            answer = self.catalogue.group(parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            answer = self.catalogue.resources(parts[1], parts[2])
        if answer is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return _json(answer, 200)

    @staticmethod
    async def _body(http: web.Request) -> Any:
        if not http.can_read_body:
            return None
        text = await http.text()
        if not text:
            return None
        is_yaml = "yaml" in http.content_type and text[0] not in "{["
        return yaml.safe_load(text) if is_yaml else json.loads(text)

    def _meet_trouble(self, request: Request) -> None:
        with self.store.lock:
            for trouble in tuple(self.troubles):
                if trouble.meets(request):
                    if trouble.times is not None:
                        trouble.times -= 1
                        if trouble.times <= 0:
                            self.troubles.remove(trouble)
                    raise trouble.refusal

    # Answering

    def _answer(self, request: Request, body: Any, content_type: str) -> tuple[int, Object]:
        store, kind, where = self.store, request.kind, request.namespace
        with store.lock:
            if request.verb == "list":
                return 200, self._list(request)
            if request.sub == "eviction":
                return 201, evict(store, where, request.name, body)
            if request.verb == "create":
                if request.query.get("fieldValidation") == "Strict":
                    check_strictly(kind, body)
                if request.query.get("dryRun") == "All":
                    return 201, store.admitted(kind, body)
                return 201, store.create(kind, where, body)
            if request.verb == "delete":
                options = dict(body or {})
                if "gracePeriodSeconds" in request.query:
                    options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
                return 200, store.delete(kind, where, request.name, options)
            if request.verb == "patch" and "apply-patch" in content_type:
                manager = request.query.get("fieldManager", "")
                if not manager:
                    raise Refusal(422, "Invalid", "fieldManager is required for apply patch")
                if store.find(kind, where, request.name) is None:
                    made = replace(request, verb="create")  # who applies needs that right as well
                    self.counts[made.label] += 1
                    self._meet_trouble(made)
                stored, new = store.apply(kind, where, request.name, body, manager)
                return (201 if new else 200), stored
            old = store.get(kind, where, request.name)
            if request.sub == "scale":
                return 200, self._scale(request, old, body, content_type)
            if request.verb == "get":
                return 200, old
            new = body if request.verb == "update" else _patched(old, body, content_type)
            if request.verb == "patch" and new["metadata"].get("uid") != old["metadata"]["uid"]:
                field = "metadata.uid: Invalid value: field is immutable"
                raise Refusal(422, "Invalid", f'{kind.name} "{request.name}" is invalid: {field}')
            return 200, store.replace(kind, old, new, request.sub)

    def _list(self, request: Request) -> Object:
        query = request.query
        items = self.store.list(
            request.kind,
            request.namespace,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
        )
        meta = {"resourceVersion": str(self.store.version)}
        if "continue" in query:
            meta["resourceVersion"], _, after = query["continue"].partition(":")
            items = [item for item in items if "/".join(key_of(item)) > after]
        limit = int(query.get("limit") or 0)
        if 0 < limit < len(items):
            items = items[:limit]
            meta["continue"] = f"{meta['resourceVersion']}:{'/'.join(key_of(items[-1]))}"
        return {
            "kind": f"{request.kind.name}List",
            "apiVersion": request.kind.api_version,
            "metadata": meta,
            "items": items,
        }

    def _scale(self, request: Request, old: Object, body: Any, content_type: str) -> Object:
        """``spec.replicaSpecs.Worker.replicas`` as the CRD's scale subresource shows it."""
        if request.verb in ("patch", "update"):
            shown = _scale_of(old)
            meant = body if request.verb == "update" else _patched(shown, body, content_type)
            wanted = {"replicas": meant["spec"]["replicas"]}
            change = {"spec": {"replicaSpecs": {"Worker": wanted}}}
            old = self.store.replace(request.kind, old, patches.merged(old, change))
        return _scale_of(old)

    # Streams

    async def _watch(self, http: web.Request, request: Request) -> web.StreamResponse:
        store, query = self.store, request.query
        seen = int(query.get("resourceVersion") or 0)
        limit = float(query.get("timeoutSeconds") or 3600)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        if not seen:
            with store.lock:
                seen, items = store.version, self._list(request)["items"]
            for item in items:
                await response.write(_line("ADDED", item))
        await self._stream(response, self._changes(response, request, seen), limit)
        return response

    async def _changes(self, response: web.StreamResponse, request: Request, seen: int) -> None:
        loop = asyncio.get_running_loop()
        spoke, waker = loop.time(), asyncio.Event()
        self._wakers.add(waker)
        try:
            while True:
                waker.clear()
                try:
                    changes = self.store.since(seen)
                except Refusal as late:
                    await response.write(_line("ERROR", late.status()))
                    return
                lines = [line for change in changes if (line := _seen_by(request, change))]
                seen = changes[-1].version if changes else seen
                if not lines and loop.time() - spoke >= _BOOKMARK_SECONDS:
                    lines = [_bookmark(request.kind, seen)]
                if lines:
                    await response.write(b"".join(lines))
                    spoke = loop.time()
                try:
                    async with asyncio.timeout(_BOOKMARK_SECONDS):
                        await waker.wait()
                except TimeoutError:
                    continue
        finally:
            self._wakers.discard(waker)

    async def _log(self, http: web.Request, request: Request) -> web.StreamResponse:
        place = (request.namespace, request.name)
        pod = self.store.get(POD, *place)
        if not (pod.get("status") or {}).get("podIP"):
            raise Refusal(
                400, "BadRequest", f'container in pod "{request.name}" is waiting to start'
            )
        text = self.logs.get(place, "")
        if tail := request.query.get("tailLines"):
            lines = text.splitlines(keepends=True)
            text = "".join(lines[len(lines) - min(int(tail), len(lines)) :])
        if request.query.get("follow") not in ("1", "true"):
            return web.Response(text=text)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(http)
        told = len(self.logs.get(place, ""))
        await response.write(text.encode())
        await self._stream(response, self._follow(response, place, told), 3600)
        return response

    async def _follow(
        self, response: web.StreamResponse, place: tuple[str, str], told: int
    ) -> None:
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            while True:
                waker.clear()
                text = self.logs.get(place, "")
                if text[told:]:
                    await response.write(text[told:].encode())
                    told = len(text)
                pod = self.store.find(POD, *place)
                if pod is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
                    return
                await waker.wait()
        finally:
            self._wakers.discard(waker)

    async def _stream(self, response: web.StreamResponse, told: Any, limit: float) -> None:
        task = asyncio.ensure_future(told)
        self._streams.add(task)
        try:
            await asyncio.wait_for(asyncio.shield(task), limit)
            await response.write_eof()
        except TimeoutError:
            await response.write_eof()
        except asyncio.CancelledError:  # broken on purpose, or the client has gone
            if response._req and response._req.transport:
                response._req.transport.abort()
            raise
        except ConnectionError:
            pass
        finally:
            task.cancel()
            self._streams.discard(task)


def _seen_by(request: Request, change: Change) -> bytes | None:
    """The line of a watch for a change, if its selectors concern it."""
    if change.kind != request.kind:
        return None
    is_in, was_in = _concerns(request, change.item), _concerns(request, change.before)
    if change.type == "DELETED":
        return change.line("DELETED") if is_in else None
    if is_in:
        return change.line("MODIFIED" if was_in else "ADDED")
    return change.line("DELETED") if was_in else None


def _concerns(request: Request, item: Object | None) -> bool:
    if item is None:
        return False
    meta, query = item["metadata"], request.query
    return (
        request.namespace in ("", meta.get("namespace", ""))
        and patches.selected(meta.get("labels", {}), query.get("labelSelector", ""))
        and patches.chosen(item, query.get("fieldSelector", ""))
    )


def _patched(old: Object, body: Any, content_type: str) -> Object:
    if content_type == "application/strategic-merge-patch+json":
        return patches.merged(*patches.without_primitives(old, body))  # type: ignore[no-any-return]
    if content_type == "application/merge-patch+json":
        return patches.merged(old, body)  # type: ignore[no-any-return]
    raise Refusal(415, "UnsupportedMediaType", f"unknown kind of patch: {content_type}")


def _scale_of(job: Object) -> Object:
    status = job.get("status") or {}
    worker = job.get("spec", {}).get("replicaSpecs", {}).get("Worker", {})
    meta = {name: job["metadata"].get(name) for name in ("name", "namespace", "uid")}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {**meta, "resourceVersion": job["metadata"]["resourceVersion"]},
        "spec": {"replicas": worker.get("replicas", 0)},
        "status": {"replicas": status.get("replicas", 0), "selector": status.get("selector", "")},
    }


def _bookmark(kind: Kind, version: int) -> bytes:
    meta = {"resourceVersion": str(version), "creationTimestamp": now()}
    return _line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta})


def _line(type: str, item: Object) -> bytes:
    return json.dumps({"type": type, "object": item}).encode() + b"\n"


def _json(answer: Object, code: int) -> web.Response:
    return web.json_response(answer, status=code)
