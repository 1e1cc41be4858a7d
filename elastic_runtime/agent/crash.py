"""A defect of this package in an agent: its traceback goes to a file, and the agent ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.agent.lifecycle.lifecycle_types import Finish
from elastic_runtime.errors import EXIT_CRASHED
from elastic_runtime.events.node_events import AgentCrashEvent
from elastic_runtime.protocol.records import LOST, FaultReport
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig
    from elastic_runtime.protocol.round_records import RoundRecord


def ended_by(crash: threads.Crash, config: JobConfig) -> tuple[Finish, AgentCrashEvent]:
    """Writes a crash down.

    Args:
        crash: what has happened.
        config: the agent's settings.

    Returns:
        How the agent ends, and what it tells people.
    """
    path = threads.write_down(crash, config.output.log_dir or "")
    error = f"{crash.error} (in its thread {crash.thread})"
    where = (
        f"the traceback is in {path}" if path else f"it could not be written down:\n{crash.trace}"
    )
    message = f"the agent of {config.node_name} has crashed: {error}; {where}"
    return Finish(EXIT_CRASHED, message), AgentCrashEvent(error, path)


def fault_of(crash: threads.Crash, last: RoundRecord) -> FaultReport:
    """The report for the other nodes: a crash costs the job what a lost node costs."""
    return FaultReport(last.number, LOST, f"the agent has crashed ({crash.error})")
