"""The controller's client and the fake API server, told by each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from elastic_runtime.events import silent
from elastic_runtime.kubernetes import api_client as api_module
from elastic_runtime.kubernetes.api_client import JOBS, PODS, SERVICES, Access, Api, ApiError
from elastic_runtime.kubernetes.informer import Watch
from tests.kube.kinds import JOB, POD

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from tests.kube.cluster import FakeCluster

_PATIENCE = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(_PATIENCE):
            await work

    asyncio.run(timed())


def pod(name: str, **labels: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "train"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [container]},
    }


class Diary:
    """A follower that writes down what it is told, and can be waited for."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self.lists = 0
        self._changed = asyncio.Condition()

    def learned(self, item: dict[str, Any]) -> None:
        self._named[item["metadata"]["uid"]] = item["metadata"]["name"]
        self._tell()

    def only(self, uids: Collection[str], _: int) -> None:
        self.lists += 1
        self._named = {uid: name for uid, name in self._named.items() if uid in uids}
        self._tell()

    def happened(self, type: str, item: dict[str, Any]) -> None:
        self.learned(item)
        if type == "DELETED":
            del self._named[item["metadata"]["uid"]]

    async def until(self, there: set[str]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: set(self._named.values()) == there)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._told = asyncio.ensure_future(tell())


def follow(api: Api, diary: Diary, selector: str = "") -> asyncio.Task[None]:
    return asyncio.create_task(Watch(api, PODS, "", selector, diary, silent).run())


def test_objects_come_change_and_go(cluster: FakeCluster) -> None:
    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            made = await api.create(PODS, "default", pod("a"))
            with pytest.raises(ApiError) as twice:
                await api.create(PODS, "default", pod("a"))
            assert twice.value.conflict
            with pytest.raises(ApiError) as another:
                await api.delete(PODS, "default", "a", uid="another")
            assert another.value.conflict
            await api.delete(PODS, "default", "a", uid=made["metadata"]["uid"], grace=0)
            with pytest.raises(ApiError) as gone:
                await api.get(PODS.path("default", "a"))
            assert gone.value.gone
            assert "pods/a" in str(gone.value)

    run(play())


def test_applying_takes_away_what_is_said_no_more(cluster: FakeCluster) -> None:
    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
            first = await api.apply(
                SERVICES, "default", "s", {**head, "spec": {"type": "x", "selector": {"a": "1"}}}
            )
            again = await api.apply(
                SERVICES, "default", "s", {**head, "spec": {"type": "x", "selector": {"a": "1"}}}
            )
            assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            other = await api.apply(SERVICES, "default", "s", {**head, "spec": {"type": "x"}})
            assert "selector" not in other["spec"]
            assert other["spec"]["clusterIP"] == first["spec"]["clusterIP"]

    run(play())


def test_a_status_on_an_old_version_is_a_conflict(cluster: FakeCluster) -> None:
    job = cluster.add(JOB, {"metadata": {"name": "j", "namespace": "default"}, "spec": {"a": 1}})
    cluster.edit(JOB, "j", {"spec": {"a": 2}})

    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            version = {"resourceVersion": job["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": {"step": 1}, "spec": {"a": 3}}
            with pytest.raises(ApiError) as late:
                await api.patch_status(JOBS, "default", "j", patch)
            assert late.value.conflict
            del patch["metadata"]
            now = await api.patch_status(JOBS, "default", "j", patch)
            assert (now["status"], now["spec"]) == ({"step": 1}, {"a": 2})

    run(play())


def test_a_watch_sees_what_its_selector_means(cluster: FakeCluster) -> None:
    cluster.add(POD, pod("before", group="ours"))
    cluster.add(POD, pod("foreign"))

    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            diary = Diary()
            task = follow(api, diary, "group=ours")
            await diary.until({"before"})
            cluster.add(POD, pod("after", group="ours"))
            await diary.until({"before", "after"})
            cluster.edit(POD, "before", {"metadata": {"labels": {"group": "theirs"}}})
            await diary.until({"after"})
            task.cancel()

    run(play())


def test_a_long_list_comes_in_parts(cluster: FakeCluster) -> None:
    names = {f"pod-{number}" for number in range(250)}
    for name in names:
        cluster.add(POD, pod(name))

    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            diary = Diary()
            task = follow(api, diary)
            await diary.until(names)
            cluster.add(POD, pod("one-more"))
            await diary.until(names | {"one-more"})
            task.cancel()

    run(play())
    assert cluster.counts()["list pods"] == 3
    assert cluster.counts()["watch pods"] == 1


@pytest.mark.parametrize("forget", [False, True], ids=["goes on", "lists anew"])
def test_a_watch_that_breaks(cluster: FakeCluster, forget: bool) -> None:
    cluster.add(POD, pod("a"))

    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            diary = Diary()
            task = follow(api, diary)
            await diary.until({"a"})
            with cluster.store.lock:
                cluster.kubelet.lose("default", "a")
                cluster.add(POD, pod("b"))
                cluster.break_watches(forget)
            await diary.until({"b"})
            assert diary.lists == 1 + forget
            task.cancel()

    run(play())


def test_a_watch_that_is_silent_is_begun_anew(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "_SILENCE", 0.1)
    broken: list[str] = []

    async def play() -> None:
        watches: list[int] = []
        again = asyncio.Event()

        def count(verb: str, code: int) -> None:
            if verb == "WATCH":
                watches.append(code)
            if len(watches) > 1:
                again.set()

        async with Api(lambda: Access(cluster.url), count) as api:
            diary = Diary()
            watch = Watch(api, PODS, "", "", diary, lambda name, **_: broken.append(name))
            task = asyncio.create_task(watch.run())
            await again.wait()
            cluster.add(POD, pod("a"))
            await diary.until({"a"})
            assert diary.lists == 1
            task.cancel()

    run(play())
    assert broken == []


def test_a_watch_whose_version_is_refused_lists_anew(cluster: FakeCluster) -> None:
    cluster.add(POD, pod("a"))

    async def play() -> None:
        async with Api(lambda: Access(cluster.url)) as api:
            diary = Diary()
            task = follow(api, diary)
            await diary.until({"a"})
            with cluster.trouble(lambda asked: asked.verb == "watch", 410, "Expired", "", 1):
                with cluster.store.lock:
                    cluster.kubelet.lose("default", "a")
                    cluster.break_watches(forget=True)
                await diary.until(set())
            assert diary.lists == 2
            task.cancel()

    run(play())


def test_a_refusal_says_what_was_asked_and_why(cluster: FakeCluster) -> None:
    async def play() -> None:
        counted: list[tuple[str, int]] = []
        async with Api(
            lambda: Access(cluster.url), lambda verb, code: counted.append((verb, code))
        ) as api:
            quota = 'pods "a" is forbidden: exceeded quota: small'
            with cluster.trouble(lambda _: True, 403, "Forbidden", quota):
                with pytest.raises(ApiError) as refused:
                    await api.create(PODS, "default", pod("a"))
            assert refused.value.quota
            assert not refused.value.passing
            assert str(refused.value) == f"POST /api/v1/namespaces/default/pods: {quota}"
        assert counted == [("POST", 403)]

    run(play())


def test_credentials_are_asked_for_again_once(cluster: FakeCluster) -> None:
    cluster.server.token = "new"
    shown = iter(["old", "new"])

    async def play() -> None:
        def login() -> Access:
            return Access(cluster.url, {"Authorization": f"Bearer {next(shown)}"})

        async with Api(login) as api:
            assert (await api.get(PODS.path()))["items"] == []
            cluster.server.token = "newer"
            shown_again = iter(["wrong"])
            api._login = lambda: Access(cluster.url, {"Authorization": next(shown_again)})
            with pytest.raises(ApiError) as refused:
                await api.get(PODS.path())
            assert refused.value.code == 401

    run(play())


def test_an_answer_that_is_not_the_api_servers_is_a_failure_that_passes() -> None:
    async def login_page(_: web.Request) -> web.Response:
        return web.Response(text="<html>\n log in first\n</html>")

    async def play() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", login_page)
        async with TestServer(app) as proxy, Api(lambda: Access(str(proxy.make_url("")))) as api:
            with pytest.raises(ApiError, match="is no JSON") as asked:
                await api.get(PODS.path())
            with pytest.raises(ApiError, match="is no JSON") as watched:
                async for _ in api.watch(PODS.path(), "1"):
                    pass
            assert asked.value.passing
            assert watched.value.passing

    run(play())


def test_credentials_are_not_shown() -> None:
    assert "geheim" not in repr(Access("http://x", {"Authorization": "Bearer geheim"}))
