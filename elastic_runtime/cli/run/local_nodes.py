"""``--local-nodes``: several nodes on this machine, each an agent in its own process.

This process only starts them, passes signals on, and says how it ended. Each node is in a process
group of its own, so that Ctrl-C in a terminal reaches it once, through here, and ends with this
process whatever happens to it (``cli.run.local_node``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

from elastic_runtime.agent.logs.launcher_error import ErrorsOfNodes
from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED
from elastic_runtime.events.job_events import LocalEnded, LocalStarted
from elastic_runtime.system.repeated_signals import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from elastic_runtime.events import Emit

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def watched(names: Iterable[str]) -> frozenset[signal.Signals]:
    """What the launcher of local nodes waits for.

    A signal that this process was started to ignore (nohup, a job in the background of a script)
    is none: the nodes ignore it as well, and it must not count as the first of two requests.

    Args:
        names: the signals that ask a node to leave.
    """
    asking = {*_PASSED_ON, *(signal.Signals[name] for name in names)}
    heeded = {number for number in asking if signal.getsignal(number) is not signal.SIG_IGN}
    return frozenset({*heeded, signal.SIGCHLD})


def run_nodes(
    commands: Mapping[str, Sequence[str]],
    hosted: bool,
    environ: Mapping[str, str],
    emit: Emit,
    signals: frozenset[signal.Signals],
) -> int:
    """Runs one process a node and waits for all of them. For the main thread only.

    ``signals`` must be blocked in the caller's signal mask, from before any thread was started:
    signals are taken one after the other here, and none may end another thread meanwhile.

    Args:
        commands: by the node's name, its arguments of ``elastic-run``.
        hosted: this process hosts the store.
        environ: the nodes' environment.
        emit: where the start is reported.
        signals: what is waited for, see ``watched``.

    Returns:
        The exit code of the whole.
    """
    with ErrorsOfNodes(environ) as errors:
        codes = _run(commands, hosted, errors.environ, emit, signals)
        code = combined_exit_code(codes.values())
        errors.hand_on(name for name, ended in codes.items() if ended == code != EXIT_DONE)
    return code


def _run(
    commands: Mapping[str, Sequence[str]],
    hosted: bool,
    environ: Callable[[str], Mapping[str, str]],
    emit: Emit,
    signals: frozenset[signal.Signals],
) -> dict[str, int]:
    """The same; returns the exit codes of the nodes."""
    invocation = uuid.uuid4().hex
    word, put = os.pipe()
    os.set_blocking(word, False)
    os.write(put, b".")
    shared = (str(int(hosted)), invocation, json.dumps([*commands]), str(word))
    nodes = {n: _start([*shared, *words], word, environ(n)) for n, words in commands.items()}
    os.close(word)
    request: StopRequest | None = None
    hurried = False
    try:
        emit(LocalStarted(list(nodes), [node.pid for node in nodes.values()]))
        while any(node.poll() is None for node in nodes.values()):
            number = signal.sigwaitinfo(signals).si_signo
            if number == signal.SIGCHLD:
                continue
            if request is not None and request.repeated_by(number, time.monotonic()):
                continue
            hurried = request is not None
            for node in nodes.values():
                node.send_signal(signal.SIGKILL if hurried else number)
            request = request or StopRequest(number, time.monotonic())
    finally:
        for node in nodes.values():
            node.kill()
            node.wait()
        os.close(put)  # not before: with its other end closed, a pipe stays empty
    asked_for = {-request.signum} if request is not None else set()
    codes = {node.returncode for node in nodes.values()}
    if not hurried and max(codes) < 0 and not codes <= asked_for:
        # None of them could say anything.
        ends = {name: signal.Signals(-node.returncode).name for name, node in nodes.items()}
        reason = ", ".join(f"{name} was ended by {how}" for name, how in ends.items())
        emit(LocalEnded(reason))
    return {name: node.returncode for name, node in nodes.items()}


def _start(
    arguments: Sequence[str], word: int, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    node = [sys.executable, "-m", "elastic_runtime.cli.run.local_node"]
    return subprocess.Popen(
        [*node, str(os.getpid()), *arguments],
        env=dict(environ),
        pass_fds=(word,),
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


def combined_exit_code(codes: Iterable[int]) -> int:
    """One exit code for several nodes.

    A node that ended with 0 saw the job done, so it is done, whichever nodes were lost before.
    Otherwise the lowest code is the most telling: training failed before usage, too few nodes,
    no store, left. A signal (a negative code) says something only where nothing else does.
    """
    codes = list(codes)
    if EXIT_DONE in codes:
        return EXIT_DONE
    positive = [code for code in codes if code > 0]
    if positive:
        return min(positive)
    return 128 - max(codes) if codes else EXIT_FAILED
