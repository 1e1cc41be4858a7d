"""Which jobs are looked at, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.controller.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ONE, TWO = ("team", "one"), ("team", "two")
PATIENCE = 60.0


def in_loop(body: Callable[[WorkQueue], Coroutine[Any, Any, None]]) -> None:
    """Runs a test in an event loop, with a queue of its own."""

    async def run() -> None:
        await asyncio.wait_for(body(WorkQueue()), PATIENCE)

    asyncio.run(run())


def test_jobs_come_in_order_and_each_once() -> None:
    async def body(queue: WorkQueue) -> None:
        for key in (TWO, ONE, TWO, ONE):
            queue.add(key)
        assert len(queue) == 2
        assert [await queue.get(), await queue.get()] == [TWO, ONE]
        assert len(queue) == 0

    in_loop(body)


def test_a_job_that_is_being_looked_at_comes_again_afterwards() -> None:
    async def body(queue: WorkQueue) -> None:
        queue.add(ONE)
        key = await queue.get()
        queue.add(ONE)
        queue.add(ONE)
        queue.add(TWO)
        assert await queue.get() == TWO, "the other one first: nobody else has the busy one"
        assert len(queue) == 1
        queue.done(key)
        assert await queue.get() == ONE
        queue.done(ONE)
        assert len(queue) == 0

    in_loop(body)


def test_of_several_later_moments_the_last_one_that_was_set_counts() -> None:
    async def body(queue: WorkQueue) -> None:
        queue.add_after(ONE, 3600.0)
        queue.add_after(ONE, -1.0)
        assert await queue.get() == ONE
        queue.done(ONE)
        queue.add_after(ONE, 0.0)
        queue.add_after(ONE, 3600.0)
        queue.add_after(TWO, 0.0)
        assert await queue.get() == TWO
        queue.done(TWO)
        queue.add_after(ONE, 0.0)
        queue.cancel_timer(ONE)
        queue.cancel_timer(ONE)
        queue.add_after(TWO, 0.0)
        assert await queue.get() == TWO
        assert len(queue) == 0

    in_loop(body)


@pytest.mark.parametrize("busy", [False, True])
def test_a_moment_that_comes_is_an_event_like_any_other(busy: bool) -> None:
    async def body(queue: WorkQueue) -> None:
        if busy:
            queue.add(ONE)
            await queue.get()
        queue.add_after(ONE, 0.0)
        queue.add_after(TWO, 0.001)
        assert await queue.get() == (TWO if busy else ONE)
        if busy:
            queue.done(ONE)
            assert await queue.get() == ONE

    in_loop(body)
