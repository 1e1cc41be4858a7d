"""Labels of nodes: who asks for them, how often, and what is known when there is no answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.kubernetes.node_labels import NodeLabels
from elastic_runtime.limits import FORBIDDEN_TOPOLOGY_PAUSE, NODE_LABELS_AGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEYS = ("zone", "rack")


class _Server:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refusal: ApiError | None = None
        self.labels = {"zone": "z1", "rack": "r1", "other": "o"}
        self.now = 1000.0

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        await asyncio.sleep(0)  # others come meanwhile
        if self.refusal:
            raise self.refusal
        return {"metadata": {"labels": self.labels}}

    def play(self, act: Callable[[NodeLabels], Awaitable[None]], most: int = 10) -> None:
        async def run() -> None:
            await act(NodeLabels(cast("Any", self), lambda: self.now, most))

        asyncio.run(run())


@pytest.fixture
def server() -> _Server:
    return _Server()


def test_one_question_is_enough_for_the_many_pods_of_a_node(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        answers = await asyncio.gather(*(nodes.read("n1", KEYS) for _ in range(9)))
        assert answers == [("z1", "r1")] * 9
        server.now += NODE_LABELS_AGE - 1
        assert await nodes.read("n1", KEYS) == ("z1", "r1")

    server.play(act)
    assert server.asked == ["/api/v1/nodes/n1"]


def test_what_is_known_for_long_is_asked_again(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        await nodes.read("n1", KEYS)
        server.labels = {"zone": "z2"}
        server.now += NODE_LABELS_AGE
        assert await nodes.read("n1", KEYS) == ("z2", "")

    server.play(act)
    assert len(server.asked) == 2


def test_no_more_is_kept_than_so_much(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        for node in ("n1", "n2", "n1", "n3", "n1", "n2"):
            await nodes.read(node, KEYS)

    server.play(act, most=2)
    assert [path[-2:] for path in server.asked] == ["n1", "n2", "n3", "n2"]


def test_a_node_that_is_gone_has_no_labels_and_may_come_back(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        server.refusal = ApiError(404, "NotFound", "no such node", "GET")
        assert await nodes.read("n1", KEYS) == ("", "")
        server.refusal = None
        assert await nodes.read("n1", KEYS) == ("z1", "r1")

    server.play(act)


def test_what_is_forbidden_is_asked_once_in_a_while(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        server.refusal = ApiError(403, "Forbidden", "nodes is forbidden", "GET")
        for node in ("n1", "n2", "n1"):
            with pytest.raises(ApiError, match="nodes is forbidden"):
                await nodes.read(node, KEYS)
        assert len(server.asked) == 1
        server.refusal = None
        server.now += FORBIDDEN_TOPOLOGY_PAUSE
        assert await nodes.read("n2", KEYS) == ("z1", "r1")
        assert await nodes.read("n1", KEYS) == ("z1", "r1")

    server.play(act)


def test_a_server_that_is_away_is_asked_again(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        server.refusal = ApiError(0, NO_ANSWER, "it is away", "GET")
        with pytest.raises(ApiError, match="it is away"):
            await nodes.read("n1", KEYS)
        server.refusal = None
        assert await nodes.read("n1", KEYS) == ("z1", "r1")

    server.play(act)


def test_who_asks_and_goes_away_takes_nobodys_answer_with_it(server: _Server) -> None:
    async def act(nodes: NodeLabels) -> None:
        first = asyncio.create_task(nodes.read("n1", KEYS))
        second = asyncio.create_task(nodes.read("n1", KEYS))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == ("z1", "r1")

    server.play(act)
    assert len(server.asked) == 1
