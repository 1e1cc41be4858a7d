"""The client, the informer and the fake API server, told by each other."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from elastic_runtime.controller.spec.job_spec import JOBS
from elastic_runtime.errors import UsageError
from elastic_runtime.events import Emit, silent
from elastic_runtime.kubernetes import api_client as api_module
from elastic_runtime.kubernetes.api_client import ApiClient
from elastic_runtime.kubernetes.api_errors import NOT_KUBERNETES, ApiError
from elastic_runtime.kubernetes.api_resources import PODS, SERVICES
from elastic_runtime.kubernetes.cluster_access import ClusterCredentials
from elastic_runtime.kubernetes.informer import Informer
from tests.integration.etcd import certificates
from tests.kube.kinds import JOB, POD
from tests.unit.controller.loops import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection
    from pathlib import Path

    from tests.kube.cluster import FakeCluster


def pod(name: str, **labels: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "train"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [container]},
    }


class Diary:
    """A cache that writes down what it is told, and can be waited for."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self.lists = 0
        self._changed = asyncio.Condition()

    def update(self, item: dict[str, Any]) -> None:
        self._named[item["metadata"]["uid"]] = item["metadata"]["name"]
        self._tell()

    def retain(self, uids: Collection[str], _: int) -> None:
        self.lists += 1
        self._named = {uid: name for uid, name in self._named.items() if uid in uids}
        self._tell()

    def delete(self, item: dict[str, Any]) -> None:
        self._named.pop(item["metadata"]["uid"], None)
        self._tell()

    async def until(self, there: set[str]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: set(self._named.values()) == there)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._told = asyncio.ensure_future(tell())


def _client_of(url: str, *counted: Callable[[str, int], None]) -> ApiClient:
    return ApiClient(lambda: ClusterCredentials(url.rstrip("/")), "tests", *counted)


@asynccontextmanager
async def following(
    client: ApiClient, selector: str = "", tell: Emit = silent
) -> AsyncIterator[Diary]:
    """What an informer of pods writes into its cache."""
    async with client:
        diary = Diary()
        task = asyncio.create_task(Informer(client, PODS, "", selector, diary, tell).run())
        yield diary
        task.cancel()


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[Any]]) -> AsyncIterator[ApiClient]:
    """A client of a server that answers all requests in this way."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as proxy, _client_of(str(proxy.make_url(""))) as client:
        yield client


@in_loop
async def test_objects_come_change_and_go(cluster: FakeCluster) -> None:
    async with _client_of(cluster.url) as client:
        made = await client.create(PODS, "default", pod("a"))
        with pytest.raises(ApiError) as twice:
            await client.create(PODS, "default", pod("a"))
        assert twice.value.conflict
        with pytest.raises(ApiError) as another:
            await client.delete(PODS, "default", "a", uid="another")
        assert another.value.conflict
        await client.delete(PODS, "default", "a", uid=made["metadata"]["uid"], grace=0)
        with pytest.raises(ApiError) as gone:
            await client.get(PODS.path("default", "a"))
        assert gone.value.not_found
        assert "pods/a" in str(gone.value)


@in_loop
async def test_applying_takes_away_what_is_said_no_more(cluster: FakeCluster) -> None:
    async with _client_of(cluster.url) as client:
        head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        service = {**head, "spec": {"type": "x", "selector": {"a": "1"}}}
        first = await client.apply(SERVICES, "default", "s", service)
        again = await client.apply(SERVICES, "default", "s", service)
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        other = await client.apply(SERVICES, "default", "s", {**head, "spec": {"type": "x"}})
        assert "selector" not in other["spec"]
        assert other["spec"]["clusterIP"] == first["spec"]["clusterIP"]


@in_loop
async def test_a_status_on_an_old_version_is_a_conflict(cluster: FakeCluster) -> None:
    job = cluster.add(JOB, {"metadata": {"name": "j", "namespace": "default"}, "spec": {"a": 1}})
    cluster.edit(JOB, "j", {"spec": {"a": 2}})
    async with _client_of(cluster.url) as client:
        version = {"resourceVersion": job["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "status": {"step": 1}, "spec": {"a": 3}}
        with pytest.raises(ApiError) as late:
            await client.merge(JOBS, "default", "j", patch, "status")
        assert late.value.conflict
        del patch["metadata"]
        now = await client.merge(JOBS, "default", "j", patch, "status")
        assert (now["status"], now["spec"]) == ({"step": 1}, {"a": 2})


@in_loop
async def test_a_watch_sees_what_its_selector_means(cluster: FakeCluster) -> None:
    cluster.add(POD, pod("before", group="ours"))
    cluster.add(POD, pod("foreign"))
    async with following(_client_of(cluster.url), "group=ours") as diary:
        await diary.until({"before"})
        cluster.add(POD, pod("after", group="ours"))
        await diary.until({"before", "after"})
        cluster.edit(POD, "before", {"metadata": {"labels": {"group": "theirs"}}})
        await diary.until({"after"})


@in_loop
async def test_a_long_list_comes_in_parts(cluster: FakeCluster) -> None:
    names = {f"pod-{number}" for number in range(250)}
    for name in names:
        cluster.add(POD, pod(name))
    async with following(_client_of(cluster.url)) as diary:
        await diary.until(names)
        cluster.add(POD, pod("one-more"))
        await diary.until(names | {"one-more"})
    assert cluster.counts()["list pods"] == 3
    assert cluster.counts()["watch pods"] == 1


@pytest.mark.parametrize("forget", [False, True], ids=["goes on", "lists anew"])
@in_loop
async def test_a_watch_that_breaks(cluster: FakeCluster, forget: bool) -> None:
    cluster.add(POD, pod("a"))
    async with following(_client_of(cluster.url)) as diary:
        await diary.until({"a"})
        with cluster.store.lock:
            cluster.kubelet.lose("default", "a")
            cluster.add(POD, pod("b"))
            cluster.break_watches(forget)
        await diary.until({"b"})
        assert diary.lists == 1 + forget


@in_loop
async def test_a_watch_that_is_silent_is_begun_anew(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_SILENCE_TIMEOUT", 0.1)
    broken: list[str] = []
    watches: list[int] = []
    again = asyncio.Event()

    def count(verb: str, code: int) -> None:
        if verb == "WATCH":
            watches.append(code)
        if len(watches) > 1:
            again.set()

    client, tell = _client_of(cluster.url, count), lambda name, **_: broken.append(name)
    async with following(client, tell=tell) as diary:
        await again.wait()
        cluster.add(POD, pod("a"))
        await diary.until({"a"})
        assert diary.lists == 1
    assert broken == []


@in_loop
async def test_a_refusal_says_what_was_asked_and_why(cluster: FakeCluster) -> None:
    counted: list[tuple[str, int]] = []
    async with _client_of(cluster.url, lambda *asked: counted.append(asked)) as client:
        quota = 'pods "a" is forbidden: exceeded quota: small'
        with cluster.trouble(lambda _: True, 403, "Forbidden", quota):
            with pytest.raises(ApiError) as refused:
                await client.create(PODS, "default", pod("a"))
        assert refused.value.quota_exceeded
        assert not refused.value.transient
        assert str(refused.value) == f"POST /api/v1/namespaces/default/pods: {quota}"
    assert counted == [("POST", 403)]


class Logins:
    """Logs in with one token after the other; when there is none left, it cannot."""

    def __init__(self, url: str, *tokens: str) -> None:
        self._url, self._tokens, self.left = url, iter(tokens), len(tokens)

    def __call__(self) -> ClusterCredentials:
        token = next(self._tokens, None)
        if token is None:
            raise UsageError("the login program has failed")
        self.left -= 1
        return ClusterCredentials(self._url, headers={"Authorization": f"Bearer {token}"})


@in_loop
async def test_credentials_are_asked_for_again_once_for_all_who_need_them(
    cluster: FakeCluster,
) -> None:
    cluster.server.token = "new"
    logins = Logins(cluster.url, "old", "new", "spare")
    async with ApiClient(logins, "tests") as client:
        lists = await asyncio.gather(*(client.get(PODS.path()) for _ in range(5)))
        assert [found["items"] for found in lists] == [[]] * 5
    assert logins.left == 1


@in_loop
async def test_credentials_that_do_no_better_are_refused(cluster: FakeCluster) -> None:
    cluster.server.token = "new"
    async with ApiClient(Logins(cluster.url, "old", "older"), "tests") as client:
        with pytest.raises(ApiError) as refused:
            await client.get(PODS.path())
        assert (refused.value.code, refused.value.transient) == (401, True)


@in_loop
async def test_a_login_that_fails_is_tried_again_with_the_next_request(
    cluster: FakeCluster,
) -> None:
    cluster.server.token = "new"
    logins = Logins(cluster.url, "old")
    async with ApiClient(logins, "tests") as client:
        with pytest.raises(ApiError, match="the login program has failed") as refused:
            await client.get(PODS.path())
        assert refused.value.transient
        cluster.server.token = "old"
        assert (await client.get(PODS.path()))["items"] == []


@in_loop
async def test_a_watch_is_begun_anew_with_fresh_credentials(cluster: FakeCluster) -> None:
    cluster.server.token = "first"
    cluster.add(POD, pod("a"))
    async with following(ApiClient(Logins(cluster.url, "first", "second"), "tests")) as diary:
        await diary.until({"a"})
        with cluster.store.lock:
            cluster.server.token = "second"
            cluster.break_watches()
            cluster.add(POD, pod("b"))
        await diary.until({"a", "b"})
        assert diary.lists == 1


@in_loop
async def test_a_certificate_of_ours_is_shown_and_the_servers_is_checked(tmp_path: Path) -> None:
    """As a kubeconfig with certificates says; the server is known by another name."""
    made = certificates.make(tmp_path)
    demands = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made.pem("ca"))
    demands.load_cert_chain(made.pem("server"), made.key("server"))
    demands.verify_mode = ssl.CERT_REQUIRED

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"major": "1"})

    def login(trusted: str, name: str, ours: bool = True) -> ClusterCredentials:
        tls = ssl.create_default_context(cafile=made.pem(trusted))
        if ours:
            tls.load_cert_chain(made.pem("client"), made.key("client"))
        return ClusterCredentials(url, tls=tls, tls_name=name)

    async def ask(*shown: Any) -> dict[str, Any]:
        async with ApiClient(lambda: login(*shown), "tests") as client:
            return await client.get("/version")

    app = web.Application()
    app.router.add_get("/version", version)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=demands)
    url = str(server.make_url("")).rstrip("/")
    try:
        assert await ask("ca", "localhost") == {"major": "1"}
        with pytest.raises(ApiError, match="certificate verify failed"):
            await ask("foreign", "localhost")
        with pytest.raises(ApiError, match="Hostname mismatch"):
            await ask("ca", "elsewhere")
        with pytest.raises(ApiError):
            await ask("ca", "localhost", False)
    finally:
        await server.close()


@in_loop
async def test_a_redirect_is_not_followed() -> None:
    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    async with answering(elsewhere) as client:
        with pytest.raises(ApiError, match="redirect, HTTP 302") as asked:
            await client.get(PODS.path())
        assert asked.value.reason == NOT_KUBERNETES


@in_loop
async def test_a_web_page_is_no_word_of_the_api_server() -> None:
    """A proxy that knows no such page says nothing of our Lease."""

    async def nothing(_: web.Request) -> web.Response:
        return web.Response(status=404, text="<html>", content_type="text/html")

    async with answering(nothing) as client:
        with pytest.raises(ApiError, match="web page and HTTP 404") as asked:
            await client.get(PODS.path())
        assert (asked.value.not_found, asked.value.transient) == (False, True)


@in_loop
async def test_an_answer_that_is_not_the_api_servers_is_a_failure_that_passes() -> None:
    async def login_page(_: web.Request) -> web.Response:
        return web.Response(text="<html>\n log in first\n</html>")

    async with answering(login_page) as client:
        with pytest.raises(ApiError, match="is no JSON") as asked:
            await client.get(PODS.path())
        with pytest.raises(ApiError, match="is no JSON") as watched:
            async for _ in client.watch(PODS.path(), "1"):
                pass
        assert asked.value.transient
        assert watched.value.transient
