"""The patch of a status, the queue of jobs, and what is tried again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.controller.api import ApiError
from elastic_runtime.controller.metrics import Metrics
from elastic_runtime.controller.model import CreatePod, Plan
from elastic_runtime.controller.queue import Queue
from elastic_runtime.controller.reconcile import Reconciler, difference
from elastic_runtime.controller.world import World
from tests.kube.patches import merged

_VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("abcd"), below, max_size=3),
    max_leaves=8,
)
_STATUS = st.dictionaries(st.sampled_from("abcd"), _VALUES, max_size=4)

A, B = ("default", "a"), ("default", "b")


@given(_STATUS, _STATUS)
def test_the_patch_makes_the_new_status_of_the_old_one(before: Any, after: Any) -> None:
    assert merged(before, difference(before, after)) == after


@given(_STATUS)
def test_what_is_the_same_is_not_in_the_patch(status: Any) -> None:
    assert difference(status, status) == {}


def test_a_job_comes_once_however_often_it_was_put() -> None:
    async def play() -> None:
        queue = Queue()
        for key in (A, B, A):
            queue.put(key)
        assert len(queue) == 2
        assert [await queue.take(), await queue.take()] == [A, B]
        assert len(queue) == 0

    asyncio.run(play())


def test_a_job_that_is_looked_at_comes_again_only_afterwards() -> None:
    async def play() -> None:
        queue = Queue()
        queue.put(A)
        assert await queue.take() == A
        queue.put(A)
        queue.put(B)
        assert await queue.take() == B
        queue.done(A)
        assert await queue.take() == A

    asyncio.run(play())


def test_a_later_moment_replaces_the_one_before() -> None:
    async def play() -> None:
        queue = Queue()
        queue.put_later(A, 3600)
        queue.put_later(A, 0)
        async with asyncio.timeout(10):
            assert await queue.take() == A
        queue.done(A)
        queue.put_later(B, 0)
        queue.forget(B)
        queue.put_later(A, 0)
        async with asyncio.timeout(10):
            assert await queue.take() == A

    asyncio.run(play())


class _Refuses:
    """An API server in trouble."""

    def __init__(self) -> None:
        self.asked = 0

    async def create(self, *_: Any) -> Any:
        self.asked += 1
        raise ApiError(500, "InternalError", "no", "POST")


def test_a_clock_that_is_set_back_holds_up_no_try() -> None:
    async def play() -> None:
        queue, server, clock = Queue(), _Refuses(), [1e9]
        world = World(queue.put)
        meta = {"namespace": "default", "name": "a", "uid": "u", "resourceVersion": "1"}
        world.learned({"metadata": meta, "spec": {}, "status": {}})
        reconciler = Reconciler(
            cast("Any", server),
            world,
            queue,
            lambda *_: Plan(actions=(CreatePod(0, {}, "wanted"),)),
            lambda: clock[0],
            Metrics(queue.__len__, world.conditions),
            lambda *_, **__: None,
        )
        async with asyncio.timeout(10):
            for tries in (1, 2):
                assert await queue.take() == A
                await reconciler.look_at(A)
                queue.done(A)
                assert server.asked == tries
                clock[0] -= 3600

    asyncio.run(play())
