"""Runs one agent to its end: the function behind ``elastic-run``, and the one for Python."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from elastic_runtime.agent.logs.launcher_error import leave_error, leave_last_words
from elastic_runtime.agent.metrics.meter import Meter
from elastic_runtime.agent.node_name import own_name
from elastic_runtime.agent.node_topology import with_topology
from elastic_runtime.agent.workers.fork_client import EarlyForkServer
from elastic_runtime.config import FUNCTION, LOOPBACK, Endpoint, Entry, JobConfig, Siblings
from elastic_runtime.errors import (
    EXIT_CRASHED,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_LEFT,
    EXIT_NOT_ENOUGH_NODES,
    EXIT_STORE_UNREACHABLE,
    EXIT_USAGE,
    AgentCrashed,
    ElasticError,
    JobConflict,
    LeftOnRequest,
    NotEnoughNodes,
    StoreUnreachable,
    TrainingFailed,
    UsageError,
)
from elastic_runtime.events.job_events import JobDone, JobFailed, JobOver
from elastic_runtime.reporting.console import open_missing, unblocked
from elastic_runtime.system.torch_version import refuse_unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.agent.agent import ElasticAgent
    from elastic_runtime.agent.lifecycle.lifecycle_types import Finish
    from elastic_runtime.agent.metrics.metrics_fold import Watch
    from elastic_runtime.events import Emit
    from elastic_runtime.protocol.records import OutcomeRecord

# Seconds that the node on which the job failed has to report that, and between two looks.
_PRECEDENCE, _LOOKS = 2.0, 0.05

_ERRORS: dict[int, type[ElasticError]] = {
    EXIT_FAILED: TrainingFailed,
    EXIT_USAGE: JobConflict,
    EXIT_NOT_ENOUGH_NODES: NotEnoughNodes,
    EXIT_STORE_UNREACHABLE: StoreUnreachable,
    EXIT_LEFT: LeftOnRequest,
    EXIT_CRASHED: AgentCrashed,
}


def run_agent(
    config: JobConfig, emit: Emit | None = None, early: EarlyForkServer | None = None
) -> int:
    """Runs this node's agent until the job ends or the node leaves.

    Args:
        config: the settings.
        emit: where events go; by default, as ``config.log_format`` says.
        early: the fork server, if it has been started already.

    Returns:
        The exit code; see ``elastic_runtime.errors``.
    """
    with unblocked(sys.stderr) as shown:
        with (
            early or EarlyForkServer(config) as server,
            _named(config) as config,
            _events(config, shown, emit) as emit_all,
        ):
            agent, _ = _run(config, emit_all, server, ends=True)
        finish = agent.finish
        assert finish is not None
        speaks = has_last_word(config.node_name, finish.outcome, config.siblings)
        if finish.exit_code == EXIT_FAILED and speaks:
            shown.write(_root_cause(agent, config))
        if finish.exit_code != EXIT_DONE:
            _leave_error(agent, finish)
        if finish.message and finish.exit_code != EXIT_DONE and speaks:
            shown.write(f"elastic-run: {finish.message}\n")
    return config.leave_code if finish.exit_code == EXIT_LEFT else finish.exit_code


def has_last_word(name: str, outcome: OutcomeRecord | None, siblings: Siblings | None) -> bool:
    """Whether it is this node that says how the job has ended: of those in one terminal, one does.

    Args:
        name: of this node.
        outcome: the end of the job; None: the node ends for a reason of its own, which it reports.
        siblings: the nodes in its terminal. The one on which the job failed reports it; if that is
            none of them, or it does not in time, the first that asks. A node of its name may be in
            another terminal, too, and it may be dead.
    """
    if outcome is None or siblings is None:
        return True
    deadline = time.monotonic() + _PRECEDENCE
    while outcome.node in siblings.names and name != outcome.node and time.monotonic() < deadline:
        if not select.select([siblings.report_token], [], [], 0)[0]:
            return False
        time.sleep(_LOOKS)  # nothing wakes us when another node has taken the byte
    try:
        return bool(os.read(siblings.report_token, 1))
    except BlockingIOError:  # it was taken
        return False


def launch(config: JobConfig, fn: Callable[..., Any], *args: Any) -> dict[int, Any]:
    """Runs a function on every worker of an elastic job; this process becomes this node's agent.

    Example::

        values = launch(JobConfig(workers=2), train, 0.1)  # train(0.1) on two workers, here

    Args:
        config: the settings; its entry is replaced by the function.
        fn: called in each worker; importable by name there, as with ``multiprocessing``.
        *args: its arguments.

    Returns:
        What the function returned, by global rank, for the workers of this node.

    Raises:
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: the function failed
            here, and the budget allowed no other try.
        TrainingFailed: it failed on another node.
        UsageError: a setting is wrong, or the function cannot be sent to the workers.
        ElasticError: the other ends that ``elastic_runtime.errors`` lists.
    """
    open_missing()
    refuse_unsupported()
    entry = Entry(FUNCTION, fn.__qualname__, args, function=fn)
    config = replace(config, entry=entry)
    with (
        unblocked(sys.stderr) as shown,
        _with_store(config) as config,
        EarlyForkServer(config) as server,
        _named(config) as config,
        _events(config, shown) as emit_all,
    ):
        agent, values = _run(config, emit_all, server, ends=False)
    finish = agent.finish
    assert finish is not None
    if finish.exit_code == EXIT_DONE:
        return values
    if finish.exit_code == EXIT_FAILED and agent.failures:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        raise ChildFailedError(config.entry.name, agent.failures)
    raise _ERRORS.get(finish.exit_code, ElasticError)(finish.message or "the job has ended")


@contextmanager
def _with_store(config: JobConfig) -> Iterator[JobConfig]:
    """The settings with a store: one of this process's own, if they name none."""
    if config.endpoint.hosts:
        if not config.run_id:
            raise UsageError(f"the job has no name in {config.endpoint}; give JobConfig a run_id")
        yield config
        return
    from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
    from elastic_runtime.system.listening import listen

    store = StoreServer(listen(LOOPBACK))
    endpoint = Endpoint("c10d", (f"{LOOPBACK}:{store.port}",), hosted_here=True)
    try:
        yield config.with_(endpoint=endpoint, run_id=config.run_id or uuid.uuid4().hex)
    finally:
        store.close()


@contextmanager
def _named(config: JobConfig) -> Iterator[JobConfig]:
    """The settings with a name for this node, which is taken while the block runs."""
    if config.node_name:
        yield config
        return
    with own_name(config.run_id) as name:
        yield config.with_(node_name=name)


def _run(
    config: JobConfig, emit: Emit, early: EarlyForkServer, *, ends: bool
) -> tuple[ElasticAgent, dict[int, Any]]:
    started = time.monotonic()
    config = with_topology(config, emit)
    with Meter(config, emit) as meter:
        agent = _make_agent(config, meter.emit, early, meter.watch)
        with _signals(config, agent, ends=ends):
            result = agent.run(config.role)
        seconds = round(time.monotonic() - started, 1)
        if agent.finish is not None and agent.finish.exit_code == EXIT_DONE:
            end = JobDone if agent.round is not None else JobOver
            meter.emit(end(seconds, **meter.summary()))
        elif agent.finish is not None and agent.finish.outcome is not None:
            reason = agent.finish.message
            meter.emit(JobFailed(seconds, reason=reason, **meter.summary()))
        if ends and agent.finish is not None:
            leave_last_words(_last_word(agent.finish), meter.report())
    return agent, dict(result.return_values) if result else {}


def _make_agent(
    config: JobConfig, emit: Emit, early: EarlyForkServer, watch: Watch | None
) -> ElasticAgent:
    # Not before the fork server is on its way: this imports torch.
    with _no_collection():
        from torch.distributed.elastic.agent.server.api import WorkerSpec

        from elastic_runtime.agent.agent import ElasticAgent
        from elastic_runtime.agent.run_name import RunName
        from elastic_runtime.rendezvous.node_address import own_address
        from elastic_runtime.rendezvous.stores.open_store import open_store

    times = config.timeouts
    address = own_address(config.local_addr, config.endpoint)
    connect = times.connect_timeout
    store = open_store(config.endpoint, config.run_id, times.lease_ttl, connect, address)
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.workers,
        rdzv_handler=RunName(config.endpoint.backend, config.run_id),
        entrypoint=config.entry.function or config.entry.target,
        args=config.entry.args,
        max_restarts=config.max_restarts,
        event_log_handler=config.event_log_handler,
    )
    return ElasticAgent(config, spec, store, address, emit, early, watch)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps the garbage collector out of imports: it takes a fifth of their time for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _signals:
    """Turns the configured signals into a request to leave, for as long as the agent runs.

    Args:
        config: names them.
        agent: is asked.
        ends: this process ends with the agent. Once the exit code is decided, further requests are
            ignored, as they could only replace it.
    """

    def __init__(self, config: JobConfig, agent: ElasticAgent, *, ends: bool) -> None:
        self._names = config.signals
        self._ends = ends
        self._agent = agent
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for name in self._names:
            signum = getattr(signal, name.strip(), None)
            # What was ignored when we were started (nohup) stays ignored.
            if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: Any) -> None:
        self._agent.ask_to_leave(signum)

    def __exit__(self, *exc: object) -> None:
        deaf = self._ends and self._agent.finish is not None
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_IGN if deaf else handler)


@contextmanager
def _events(config: JobConfig, shown: TextIO, emit: Emit | None = None) -> Iterator[Emit]:
    """Where events go."""
    from elastic_runtime.agent.logs.event_file import also_to_file
    from elastic_runtime.reporting.log import make_emit

    emit = emit or make_emit(config.log_format, shown, config.node_name)
    with also_to_file(emit, config.log_file, config.node_name) as both:
        yield both


def _leave_error(agent: ElasticAgent, finish: Finish) -> None:
    """Leaves the error of the worker that has failed first here; if none has, the agent's own."""
    fault = finish.outcome.fault if finish.outcome else None
    name = _ERRORS.get(finish.exit_code, ElasticError).__name__
    summary = f"{name}: {finish.message or f'ended with code {finish.exit_code}'}"
    if finish.exit_code != EXIT_FAILED or not agent.failures:
        leave_error(summary, traceback=fault.traceback if fault else "")
        return
    # What the job has failed of; the others may have failed because of that.
    rank = (
        fault.rank
        if fault and fault.rank in agent.failures
        else min(agent.failures, key=lambda rank: agent.failures[rank].timestamp)
    )
    found = agent.failures[rank]
    trace = ""
    if isinstance(found.message, dict):  # it has left an error file
        summary, trace = found.message["message"], found.message["extraInfo"]["py_callstack"]
    leave_error(summary, traceback=trace, moment=found.timestamp, code=found.exitcode)


def _last_word(finish: Finish) -> str:
    if finish.exit_code == EXIT_DONE:
        return finish.message or "training is done"
    return finish.message or f"ended with exit code {finish.exit_code}"


def _root_cause(agent: ElasticAgent, config: JobConfig) -> str:
    """torch's table of the failures of this node; if there are none, the first one elsewhere."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if agent.failures:
        report = ChildFailedError(config.entry.name, agent.failures)
        return f"{str(report).rstrip()}\n"
    outcome = agent.finish.outcome if agent.finish else None
    if outcome is not None and outcome.fault is not None and outcome.fault.traceback:
        text = outcome.fault.traceback.rstrip()
        return f"worker {outcome.fault.rank} on {outcome.node} failed:\n{text}\n"
    return ""
