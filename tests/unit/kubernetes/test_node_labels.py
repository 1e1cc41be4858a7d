"""Labels of nodes: who asks for them, how often, and what is known when there is no answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.kubernetes.node_labels import NodeLabels
from elastic_runtime.limits import FORBIDDEN_TOPOLOGY_PAUSE, NODE_LABELS_AGE

KEYS = ("zone", "rack")


class _Server:
    """Has labels of nodes, and refuses them if it is told to."""

    def __init__(self, most: int = 10) -> None:
        self.asked: list[str] = []
        self.refusal: ApiError | None = None
        self.labels = {"zone": "z1", "rack": "r1", "other": "o"}
        self.now = 1000.0
        self.nodes = NodeLabels(cast("Any", self), lambda: self.now, most)

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        await asyncio.sleep(0)  # others come meanwhile
        if self.refusal:
            raise self.refusal
        return {"metadata": {"labels": self.labels}}

    def read(self, node: str = "n1") -> tuple[str, ...]:
        async def run() -> tuple[str, ...]:
            return await self.nodes.read(node, KEYS)

        return asyncio.run(run())


@pytest.fixture
def server() -> _Server:
    return _Server()


def test_one_question_is_enough_for_the_many_pods_of_a_node(server: _Server) -> None:
    async def ask() -> None:
        answers = await asyncio.gather(*(server.nodes.read("n1", KEYS) for _ in range(9)))
        assert answers == [("z1", "r1")] * 9

    asyncio.run(ask())
    server.now += NODE_LABELS_AGE - 1
    assert server.read() == ("z1", "r1")
    assert server.asked == ["/api/v1/nodes/n1"]


def test_what_is_known_for_long_is_asked_again(server: _Server) -> None:
    server.read()
    server.labels = {"zone": "z2"}
    server.now += NODE_LABELS_AGE
    assert server.read() == ("z2", "")
    assert len(server.asked) == 2


def test_no_more_is_kept_than_so_much() -> None:
    server = _Server(most=2)
    for node in ("n1", "n2", "n1", "n3", "n1", "n2"):
        server.read(node)
    assert [path[-2:] for path in server.asked] == ["n1", "n2", "n3", "n2"]


def test_a_node_that_is_gone_has_no_labels_and_may_come_back(server: _Server) -> None:
    server.refusal = ApiError(404, "NotFound", "no such node", "GET")
    assert server.read() == ("", "")
    server.refusal = None
    assert server.read() == ("z1", "r1")


def test_what_is_forbidden_is_asked_once_in_a_while(server: _Server) -> None:
    server.refusal = ApiError(403, "Forbidden", "nodes is forbidden", "GET")
    for node in ("n1", "n2", "n1"):
        with pytest.raises(ApiError, match="nodes is forbidden"):
            server.read(node)
    assert len(server.asked) == 1
    server.refusal = None
    server.now += FORBIDDEN_TOPOLOGY_PAUSE
    assert server.read("n2") == server.read("n1") == ("z1", "r1")


def test_a_server_that_is_away_is_asked_again(server: _Server) -> None:
    server.refusal = ApiError(0, NO_ANSWER, "it is away", "GET")
    with pytest.raises(ApiError, match="it is away"):
        server.read()
    server.refusal = None
    assert server.read() == ("z1", "r1")


def test_who_asks_and_goes_away_takes_nobodys_answer_with_it(server: _Server) -> None:
    async def ask() -> None:
        first, second = (asyncio.create_task(server.nodes.read("n1", KEYS)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == ("z1", "r1")

    asyncio.run(ask())
    assert len(server.asked) == 1
