"""What fails on the loop is told to whoever watches the threads of this process."""

from __future__ import annotations

import queue

from elastic_runtime.rendezvous.stores.embedded.event_loop import Loop
from elastic_runtime.system import threads


def test_work_that_fails_by_a_defect_is_told() -> None:
    async def fails() -> None:
        raise ZeroDivisionError("on the way")

    told: queue.Queue[threads.Crash] = queue.Queue()
    unwatch = threads.watch(told.put)
    loop = Loop()
    try:
        loop.begin(fails())
        crash = told.get(timeout=60.0)
    finally:
        unwatch()
        loop.release()
    assert (crash.thread, crash.error) == ("embedded-store", "ZeroDivisionError: on the way")
