"""What an informer asks for after each kind of break, and what its cache hears."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from elastic_runtime.kubernetes import informer as informers
from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.kubernetes.api_resources import PODS
from elastic_runtime.kubernetes.informer import Informer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from elastic_runtime.events import Event

EXPIRED = ApiError(410, "Expired", "too old", "GET")
AWAY = ApiError(0, NO_ANSWER, "it is away", "GET")
REFUSED = ApiError(403, "Forbidden", "not yours", "GET")


class _Stopped(Exception):
    """The server has told all that there is to tell."""


def a_pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def a_list(version: int, *names: str) -> dict[str, Any]:
    items = [a_pod(name, version) for name in names]
    return {"metadata": {"resourceVersion": str(version)}, "items": items}


class _Server:
    """Gives its answers one after the other: a list, the events of a watch, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def _next(self, what: str) -> Any:
        self.asked.append(what)
        if not self.answers:
            raise _Stopped
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pages(self, path: str, query: dict[str, str]) -> AsyncIterator[Any]:
        yield self._next("list")

    async def watch(self, path: str, version: str, query: dict[str, str]) -> AsyncIterator[Any]:
        for kind, item in self._next(f"watch from {version}"):
            yield {"type": kind, "object": item}


class _Cache:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def update(self, item: Any) -> None:
        self.heard.append(f"+{item['metadata']['name']}")

    def delete(self, item: Any) -> None:
        self.heard.append(f"-{item['metadata']['name']}")

    def retain(self, uids: Collection[str], version: int) -> None:
        self.heard.append(f"only {' '.join(sorted(uids))} at {version}")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it has paused; no time passes."""
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    replaced = SimpleNamespace(sleep=sleep, Event=asyncio.Event)
    monkeypatch.setattr(informers, "asyncio", replaced)
    return paused


def follow(server: _Server) -> tuple[list[str], list[Event]]:
    """Follows until the server has no answer left: what the cache and what people have heard."""
    cache, events = _Cache(), list[Any]()

    async def run() -> None:
        await Informer(cast("Any", server), PODS, "", "", cache, events.append).run()

    with pytest.raises(_Stopped):
        asyncio.run(run())
    return cache.heard, events


def test_a_watch_goes_on_where_it_broke(pauses: list[float]) -> None:
    first = [("ADDED", a_pod("b", 6)), ("DELETED", a_pod("a", 7)), ("BOOKMARK", a_pod("", 9))]
    server = _Server(a_list(5, "a"), first, AWAY, [("MODIFIED", a_pod("b", 10))])
    heard, events = follow(server)
    assert heard == ["+a", "only a at 5", "+b", "-a", "+b"]
    assert server.asked[1:] == ["watch from 5", "watch from 9", "watch from 9", "watch from 10"]
    assert [event.name for event in events] == ["controller.watch_broken"]


def test_a_version_that_the_server_has_forgotten_is_followed_by_a_new_list(
    pauses: list[float],
) -> None:
    server = _Server(a_list(5, "a", "b"), EXPIRED, a_list(9, "b"), [])
    heard, events = follow(server)
    assert server.asked == ["list", "watch from 5", "list", "watch from 9", "watch from 9"]
    assert heard[-1] == "only b at 9"
    assert not events, "that is in the nature of a watch"


def test_a_refusal_is_followed_by_a_new_list(pauses: list[float]) -> None:
    """The rights may be others by now, and so what may be seen."""
    server = _Server(a_list(5), REFUSED, a_list(6), [])
    follow(server)
    assert server.asked[1:3] == ["watch from 5", "list"]


def test_pauses_grow_until_the_server_tells_something(pauses: list[float]) -> None:
    server = _Server(*[AWAY] * 8, a_list(5), [("ADDED", a_pod("a", 6))], AWAY)
    follow(server)
    failed, after = pauses[:8], pauses[-1]
    assert max(failed) == failed[-1] > 5 * failed[0]
    assert after < failed[-1] / 2
