"""``elastic-run``: from a command line to a running agent."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.cli.flags.build_config import check_with_torch, notes
from elastic_runtime.cli.flags.flag_parser import Parser, misplaced
from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.cli.flags.setting_sources import Settings, read_settings
from elastic_runtime.cli.flags.torchrun_parser import import_torch
from elastic_runtime.cli.flags.unknown_variables import unknown_variables
from elastic_runtime.cli.hosts.host_settings import (
    OF_EACH_HOST,
    bounded_by_list,
    on_hosts,
    refuse_static,
    source_of,
    ssh_of,
)
from elastic_runtime.cli.run.accelerate_file import hint, read_accelerate_file
from elastic_runtime.cli.run.job_from_command import (
    Job,
    host_order,
    join_command,
    local_commands,
    local_environ,
    node_arguments,
    read_job,
)
from elastic_runtime.cli.run.store_target import TorchrunTarget
from elastic_runtime.cli.slurm.slurm_calls import host_of
from elastic_runtime.cli.slurm.slurm_settings import ARRAY, no_task, starts_step, under_slurm
from elastic_runtime.endpoint import ETCD, PASSWORD_VARIABLE
from elastic_runtime.errors import EXIT_INTERRUPTED, EXIT_LEFT, ElasticError, UsageError
from elastic_runtime.events.job_events import JobJoinCommand
from elastic_runtime.reporting.console import mute, open_missing, show_only_events, unblocked
from elastic_runtime.reporting.json_lines import JSON
from elastic_runtime.system.torch_version import refuse_unsupported, untested
from elastic_runtime.topology import topology_text
from elastic_runtime.worker.fast_exit import exit_fast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elastic_runtime.agent.workers.fork_client import EarlyForkServer
    from elastic_runtime.cli.flags.flag_parser import CommandLine
    from elastic_runtime.cli.hosts.host_source import HostSource
    from elastic_runtime.cli.hosts.listed_hosts import Host
    from elastic_runtime.cli.slurm.slurm_task import SlurmTask
    from elastic_runtime.config import JobConfig, Siblings
    from elastic_runtime.events import Emit

# The first process of a container. The kernel drops what such a process does not handle: a pod that
# is deleted while torch is being imported would take all of its grace to end.
_INIT = 1
# Seconds beside --grace that a node on another machine has to leave: a save may take long.
_TO_LEAVE = 600.0


def main(
    argv: Sequence[str] | None = None,
    *,
    invocation: str = "",
    siblings: Siblings | None = None,
    hosted_here: bool = False,
) -> int:
    """Runs ``elastic-run``.

    Args:
        argv: the arguments; None means those of the process.
        invocation: another ``elastic-run`` that has started this and other nodes; "": none has.
        siblings: those nodes.
        hosted_here: that one hosts the store.

    Returns:
        The exit code (``errors`` lists them).
    """
    open_missing()
    if os.getpid() == _INIT:
        _leave_on(["SIGTERM"], EXIT_LEFT)
    # Whatever says something from here on, such as a warning of torch's, cannot hang this process.
    with unblocked(sys.stderr) as shown, redirect_stderr(shown):
        try:
            words = sys.argv[1:] if argv is None else list(argv)
            return _main(words, invocation, siblings, hosted_here)
        except ElasticError as error:
            _say(f"error: {error}")
            _leave_error(error)
            return error.exit_code
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            _flush_output()


def program(
    argv: Sequence[str] | None = None,
    *,
    invocation: str = "",
    siblings: Siblings | None = None,
    hosted_here: bool = False,
) -> int:
    """As ``main``, for a process that ends with it: which is not taken apart then.

    That would take a second, as torch is imported, and more where gRPC still waits for a store.
    """
    code = main(argv, invocation=invocation, siblings=siblings, hosted_here=hosted_here)
    exit_fast(code)
    return code


def _check_temporary_files() -> None:
    """Torch cannot even be imported without them."""
    from elastic_runtime.agent.runtime_dir import check_temporary_files

    check_temporary_files()


def _leave_error(error: ElasticError) -> None:
    from elastic_runtime.agent.logs.launcher_error import leave_error, leave_last_words

    leave_error(f"{type(error).__name__}: {error}")
    leave_last_words(str(error))


def _leave_on(signals: Iterable[str], code: int) -> None:
    """Has signals end a process that is still starting; the agent has handlers of its own later."""

    def leave(signum: int, frame: object) -> None:
        raise SystemExit(code)

    for name in signals:
        number = signal.Signals[name]
        if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)


def _flush_output() -> None:
    """Writes out what torch's parser or launcher has printed; a full disk is no exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        mute(sys.stdout)


def _say(message: str) -> None:
    print(f"elastic-run: {message}", file=sys.stderr, flush=True)


def _main(argv: list[str], invocation: str, siblings: Siblings | None, hosted_here: bool) -> int:
    _check_temporary_files()
    refuse_unsupported()  # before its parser is read, which another torch may have elsewhere
    parser = Parser()
    line = parser.split(argv)
    settings = read_settings(parser.options, line.given, os.environ)
    if settings["log_format"] == JSON:
        show_only_events(sys.stderr)
    if not invocation and (warning := untested()):
        _say(f"warning: {warning}")
    task = None
    source: HostSource | None = None
    hosts: tuple[Host, ...] = ()
    if not invocation and (source := source_of(settings)) is not None:
        _leave_on(("SIGTERM", "SIGHUP", "SIGQUIT"), EXIT_LEFT)  # with the program that it asks
        hosts = source.look()
        settings = on_hosts(settings, source, hosts)
    elif not invocation:
        typed = os.isatty(0)
        settings, task = under_slurm(settings, os.environ, os.getpid(), host_of, typed=typed)
    mine = settings if source is None else settings.without(OF_EACH_HOST)
    job = read_job(line, mine, os.environ)
    if isinstance(job, TorchrunTarget):
        if source is not None:
            refuse_static(settings, job.backend)
        return _hand_over(line, settings, job)
    job = replace(job, settings=settings)
    if task is not None:
        _leave_on(job.config.signals, job.config.leave_code)
    check_with_torch(mine, job.config)
    asked = settings.of("accelerate_config")
    accelerate = read_accelerate_file(asked, job.config, os.environ)
    if accelerate is not None:
        os.environ.update(accelerate.environ)  # of the workers, too
    if job.config.log_file:
        from elastic_runtime.agent.logs.event_file import check_event_file

        check_event_file(job.config.log_file)
    if invocation:
        endpoint = replace(job.config.endpoint, hosted_here=hosted_here)
        started = {"invocation": invocation, "siblings": siblings}
        config = job.config.with_(endpoint=endpoint, **started)
        with _fork_server(config) as server:
            return _run_agent(config, server)
    unknown = unknown_variables(parser.options.values(), os.environ)
    of_accelerate = [f"{asked}: {note}" for note in accelerate.notes] if accelerate else []
    if told := hint(asked, line.script, os.environ):
        of_accelerate.append(told)
    of_slurm = no_task(settings, os.environ) if task is None and source is None else []
    for note in (*misplaced(line), *notes(settings), *of_accelerate, *unknown, *of_slurm):
        _say(f"note: {note}")
    if source is not None:
        return _run_on_hosts(job, source, hosts)
    if task is not None and starts_step(task, settings):
        return _run_step(job, task)
    # A store that a node is to host is not there yet, and would be waited for.
    if task is not None and not task.in_step and job.config.endpoint.backend == ETCD:
        _refuse_finished(job.config, task)
    return _run_local_nodes(job) if job.local_nodes > 1 else _run_one(job)


def _hand_over(line: CommandLine, settings: Settings, target: TorchrunTarget) -> int:
    from elastic_runtime.cli.run.torchrun_fallback import as_torchrun, run_torchrun, without_effect

    lost = without_effect(settings)
    tail = f"; without effect there: {', '.join(lost)}" if lost else ""
    _say(f"note: {target.backend} rendezvous: torch's own launcher runs this job{tail}")
    # Its workers' output may go through there as well, and a slow reader ought to slow them down.
    with redirect_stderr(sys.__stderr__):
        return run_torchrun(as_torchrun(line, settings, target, read_bounds(settings)))


def _run_one(job: Job) -> int:
    with _store(job) as config, _fork_server(config) as server:
        with _events(config) as emit:
            _tell_how_to_join(job, config, emit)
        return _run_agent(config, server)


def _run_local_nodes(job: Job) -> int:
    from elastic_runtime.cli.run.local_nodes import run_nodes, watched

    # Before the store starts its threads: they inherit the mask.
    signals = watched(job.config.signals)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _leave_a_core_each()
    with _store(job) as config, _events(config) as emit:
        _tell_how_to_join(job, config, emit)
        environ = local_environ(job, os.environ)
        commands = local_commands(job, config)
        return run_nodes(commands, job.embedded is not None, environ, emit, signals)


def _run_on_hosts(job: Job, source: HostSource, hosts: tuple[Host, ...]) -> int:
    from elastic_runtime.cli.hosts.host_plan import AGAIN

    while (code := _run_with_store(job, source, hosts)) == AGAIN:
        source = source.again()
        with suppress(UsageError):  # the list may be half-written just now
            hosts = source.look() or hosts
    return code


def _run_with_store(job: Job, source: HostSource, hosts: tuple[Host, ...]) -> int:
    from elastic_runtime.cli.hosts.host_plan import PlanState
    from elastic_runtime.cli.hosts.run_on_hosts import HostRunner
    from elastic_runtime.cli.run_in_store import FollowedRun, RunInStore

    with _store(job) as config:
        run, invocation = RunInStore(config.endpoint, config.run_id), uuid.uuid4().hex
        followed = FollowedRun(run)

        def ended() -> int | None:
            found = followed.outcome()
            return None if found is None else found.exit_code

        if job.embedded is not None:
            _say(f"{run.status_command()} shows the state of the job")
        if len(hosts) < config.min_nodes:
            _say(f"{len(hosts)} of the {config.min_nodes} hosts (--min) are listed so far")
        bounded = bounded_by_list(job.settings)
        plan = PlanState(
            config.timeouts.join_timeout,
            config.timeouts.grace + _TO_LEAVE,
            config.leave_code,
            most=len(hosts) if bounded else None,
        )
        runner = HostRunner(
            source,
            ssh_of(job.settings),
            lambda host: host_order(job, config, host, invocation),
            plan,
            ended,
            lambda: job.embedded is not None and run.has_nodes() is None,
            (lambda most: run.rescale(None, most)) if bounded else None,
            only_events=config.log_format == JSON,
        )
        with followed.listening():
            code = runner.run(hosts)
            outcome = ended()
    return code if outcome is None else outcome


def _run_step(job: Job, task: SlurmTask) -> int:
    from elastic_runtime.cli.run import slurm_step
    from elastic_runtime.cli.run_in_store import FollowedRun, RunInStore
    from elastic_runtime.cli.slurm.job_end import end_of_job

    settings = job.settings
    here = job.config.with_(local_addr=job.config.local_addr or host_of(task.node))
    with slurm_step.SlurmStep(_say) as step:
        with _store(replace(job, config=here)) as config:
            run = RunInStore(config.endpoint, config.run_id)
            followed = FollowedRun(run)
            slurm_step.refuse_finished(task, run, followed.before)
            began = time.monotonic()
            if job.embedded is not None:
                _say(f"{slurm_step.how_to_look(task, config)} shows the state of the job")
            own = ["--node-name", config.node_name] if settings["slurm"] == ARRAY else []
            if config.node_topology:  # there is one node, or it would have been refused
                own += ["--node-topology", topology_text(config.node_topology)]
            command = slurm_step.srun_command(task, node_arguments(job, config, own), os.environ)
            with followed.listening():
                if settings["slurm"] == ARRAY:  # others may train on when this node has left
                    over, every = lambda: followed.outcome() is not None, slurm_step.RARE_LOOK
                else:
                    over, every = followed.is_over, slurm_step.LOOK
                code = step.run(command, over, every)
                outcome = followed.outcome()
        end = end_of_job(
            code,
            outcome,
            array=settings["slurm"] == ARRAY,
            requeue=settings["requeue"],
            leave_code=settings["leave_code"],
            restarts=task.restarts,
            seconds=time.monotonic() - began,
        )
        for line in slurm_step.conclude(end, task):
            _say(line)
    return end.code


def _refuse_finished(config: JobConfig, task: SlurmTask) -> None:
    from elastic_runtime.cli.run import slurm_step
    from elastic_runtime.cli.run_in_store import RunInStore

    run = RunInStore(config.endpoint, config.run_id)
    slurm_step.refuse_finished(task, run, run.outcome())


@contextmanager
def _store(job: Job) -> Iterator[JobConfig]:
    """The settings with the endpoint of the store, hosted here if it is embedded."""
    if job.embedded is None:
        yield job.config
        return
    from elastic_runtime.cli.run.store_host import hosted

    with hosted(job.embedded, job.config.local_addr) as endpoint:
        yield job.config.with_(endpoint=endpoint)


def _tell_how_to_join(job: Job, config: JobConfig, emit: Emit) -> None:
    if job.embedded is not None and config.max_nodes > 1:
        emit(JobJoinCommand(join_command(job, config)))


@contextmanager
def _events(config: JobConfig) -> Iterator[Emit]:
    from elastic_runtime.agent.logs.event_file import also_to_file
    from elastic_runtime.reporting.log import make_emit

    shown = make_emit(config.log_format, sys.stderr, config.node_name)
    with also_to_file(shown, config.log_file, config.node_name) as emit:
        yield emit


def _fork_server(config: JobConfig) -> EarlyForkServer:
    """Starts the fork server, before this process imports torch: it does the same meanwhile."""
    from elastic_runtime.agent.workers.fork_client import EarlyForkServer

    if config.workers > 1:
        _leave_a_core_each()
    # It has been read; the workers' environment is no place for it.
    os.environ.pop(PASSWORD_VARIABLE, None)
    return EarlyForkServer(config)


def _run_agent(config: JobConfig, server: EarlyForkServer) -> int:
    from elastic_runtime.agent.launch import run_agent

    with _ended_by_ctrl_c(), _slow_import(config):
        import_torch()
    return run_agent(config, early=server)


@contextmanager
def _slow_import(config: JobConfig) -> Iterator[None]:
    from elastic_runtime.agent.start_notice import Starting

    with _events(config) as emit, Starting(emit, "importing torch"):
        yield


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Has SIGINT end this process at once within the block, also in the middle of a library.

    Python would look at it when the library is loaded, tens of seconds later on a busy machine.
    The fork server ends with this process; nothing else is there yet.
    """
    usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    if not usual or os.getpid() == _INIT:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_a_core_each() -> None:
    """As torchrun does: several workers on one machine would otherwise each use all its cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


if __name__ == "__main__":
    sys.exit(program())
