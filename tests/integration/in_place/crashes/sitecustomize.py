"""Read by Python as it starts: has one thread of one node's agent fail once a file is there.

``ELASTIC_TEST_CRASH`` names the file; it contains the node's name and the thread.
"""

import os
import sys
import threading
from pathlib import Path


def _crashes(node: str) -> bool:
    try:
        name, thread = Path(os.environ["ELASTIC_TEST_CRASH"]).read_text().split()
    except FileNotFoundError:
        return False
    return (name, thread) == (node, threading.current_thread().name)


def _install() -> None:
    from elastic_runtime.agent.lifecycle import lifecycle_step
    from elastic_runtime.rendezvous.core import membership

    decide, step = membership.decide, lifecycle_step.step

    def failing_decide(state, now):
        if state.own.record is not None and _crashes(state.own.record.name):
            raise RuntimeError("can't start new thread")
        return decide(state, now)

    def failing_step(state, event, now):
        last = state.round
        name = last.members[state.group_rank].name if last else ""
        if _crashes(name):
            raise RuntimeError("a defect")
        return step(state, event, now)

    membership.decide, lifecycle_step.step = failing_decide, failing_step


if "ELASTIC_TEST_CRASH" in os.environ and any("elastic_runtime" in word for word in sys.orig_argv):
    _install()
