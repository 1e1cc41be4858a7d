"""Which class of fault the end of a worker is, by its exit code and its error file: pure.

Here one exit is classified, no more. For all nodes together,
``rendezvous.core.formation.failure_budget`` counts what it costs the job, and ``retry_rules``
beside it decides whether to try again.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, replace
from textwrap import shorten

from elastic_runtime.limits import LONGEST_REASON, LONGEST_TRACEBACK
from elastic_runtime.protocol.records import FAILED, KILLED, START, FaultReport
from elastic_runtime.rendezvous.core.formation.retry_rules import USAGE
from elastic_runtime.worker.worker_main import says_echo

# Ended from outside: it is not the script that sends these.
_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# With these an agent ends a worker that hangs: the stacks of its threads first.
_OURS = frozenset({signal.SIGABRT, signal.SIGKILL})
# The signature of a worker's end that came with that of its fork server.
WITH_SERVER = "server"
# The signature of a worker's end that its own agent has brought about, having said why.
BY_AGENT = "ended"
_TAKEN_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_MOVING_PARTS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class WorkerError:
    """What a worker's error file says.

    Attributes:
        message: the exception's type and text, in one line or more.
        traceback: as Python prints it.
        timestamp: seconds since the epoch on this machine; 0 if unknown.
        usage: the error is one of ours that says that the user asked for something impossible.
        echo: the worker knows whether the error comes from a collective that has lost a peer;
            None: another program has written the file, and only the text can tell.
    """

    message: str
    traceback: str = ""
    timestamp: float = 0.0
    usage: bool = False
    echo: bool | None = None


def parse_error_file(data: bytes) -> WorkerError | None:
    """Reads torch's error file format; None if it is not that.

    The format is the one that ``torch.distributed.elastic.multiprocessing.errors`` writes:
    ``{"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}``.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    inner = body.get("message") if isinstance(body, dict) else None
    if isinstance(inner, str):
        return WorkerError(_printable(inner))
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return None
    extra = inner.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    try:
        moment = float(extra.get("timestamp", 0))
    except (TypeError, ValueError, OverflowError):
        moment = 0.0
    usage = extra.get("exit_code") == 2
    echo = extra.get("echo")
    trace = _printable(str(extra.get("py_callstack", "")))
    return WorkerError(
        _printable(inner["message"]),
        trace,
        moment,
        usage,
        echo if isinstance(echo, bool) else None,
    )


def _printable(text: str) -> str:
    """Replaces what is no character, and could not be written to a log."""
    return text.encode(errors="replace").decode()


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(
    round_number: int,
    rank: int,
    code: int,
    error: WorkerError | None,
    *,
    step: int = -1,
    lifetime: float = 0.0,
    killed_for: str = "",
) -> FaultReport:
    """Classifies the unwanted end of a worker.

    Args:
        round_number: the round it ran in.
        rank: its global rank.
        code: its exit code, or minus the number of the signal that ended it.
        error: its error file, if it wrote one.
        step: the highest step that it reported, -1 for none.
        lifetime: seconds it had run.
        killed_for: what it did, as a predicate, if this agent has ended it for that; else "".

    Returns:
        The report; ``consequence`` is set for errors that only echo the end of a peer.
    """
    base = FaultReport(
        round_number, FAILED, rank=rank, exit_code=code, step=step, lifetime=lifetime
    )
    if killed_for and -code in _OURS:
        reason = f"worker {rank} {killed_for}"
        return replace(base, kind=KILLED, reason=reason, signature=BY_AGENT)
    if code < 0 and -code in _KILLS:
        name = signal_name(-code)
        return replace(
            base, kind=KILLED, reason=f"worker {rank} was killed ({name})", signature=name
        )
    if error is None and code - 128 in _KILLS:
        # What a handler of the script's exits with, or a shell around it.
        name = signal_name(code - 128)
        reason = f"worker {rank} ended with {code}, as after {name}"
        return replace(base, kind=KILLED, reason=reason, signature=name)
    if error is None:
        what = signal_name(-code) if code < 0 else f"exit code {code}"
        return replace(base, reason=f"worker {rank} ended with {what}", signature=what)
    return _classify_error(base, error)


def _classify_error(base: FaultReport, error: WorkerError) -> FaultReport:
    """Classifies the end of a worker that has left an error."""
    rank = base.rank
    first_line = error.message.strip().splitlines()[0] if error.message.strip() else "an error"
    summary = first_line.split(". ")[0]
    kind, consequence = FAILED, error.echo
    if _TAKEN_PORT.search(error.message):
        kind, consequence = START, False
    elif consequence is None:
        consequence = says_echo(error.message)
    if consequence:
        summary = f"lost the connection to a peer ({summary})"
    signature = _MOVING_PARTS.sub("#", first_line)[:LONGEST_REASON]
    return replace(
        base,
        kind=kind,
        reason=f"worker {rank}: {shorten(summary, LONGEST_REASON, placeholder=' ...')}",
        signature=USAGE + signature if error.usage else signature,
        traceback=error.traceback[-LONGEST_TRACEBACK:],
        consequence=consequence,
    )
