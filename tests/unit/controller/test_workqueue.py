"""Which jobs are looked at, and when."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.workqueue import WorkQueue
from tests.unit.controller.loops import in_loop

ONE, TWO = ("team", "one"), ("team", "two")


@pytest.fixture
def queue() -> WorkQueue:
    return WorkQueue()


@in_loop
async def test_jobs_come_in_order_and_each_once(queue: WorkQueue) -> None:
    for key in (TWO, ONE, TWO, ONE):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == [TWO, ONE]
    assert len(queue) == 0


@in_loop
async def test_a_job_that_is_being_looked_at_comes_again_afterwards(queue: WorkQueue) -> None:
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


@in_loop
async def test_of_several_later_moments_the_last_one_that_was_set_counts(queue: WorkQueue) -> None:
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


@pytest.mark.parametrize("busy", [False, True])
@in_loop
async def test_a_moment_that_comes_is_an_event_like_any_other(queue: WorkQueue, busy: bool) -> None:
    if busy:
        queue.add(ONE)
        await queue.get()
    queue.add_after(ONE, 0.0)
    queue.add_after(TWO, 0.001)
    assert await queue.get() == (TWO if busy else ONE)
    if busy:
        queue.done(ONE)
        assert await queue.get() == ONE
