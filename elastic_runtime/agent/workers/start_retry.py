"""Starts that a machine refuses for lack of resources, and when they are tried again: pure.

No process can be started while there is no memory for one, or while a limit is met. Just after the
kernel has killed something for lack of memory that is so for a moment. It says nothing about the
script, so the start is tried again, after pauses that grow.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from elastic_runtime.limits import START_RETRY_PAUSES, START_RETRY_TIMEOUT

_FILES = "raise the limit of open files (ulimit -n, fs.file-max), or have fewer of them"
_REMEDIES = {
    errno.EAGAIN: "end other processes, or raise the limit of processes and threads that is met"
    " (ulimit -u, pids.max of the container, kernel.pid_max)",
    errno.ENOMEM: "free memory on this machine, or raise the limit of the container (memory.max)",
    errno.ENOSPC: "free space on this machine's disks and in its memory (/dev/shm), or raise the"
    " limit that is met (user.max_*_namespaces)",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


@dataclass(frozen=True, slots=True)
class StartRetry:
    """A start that the machine refuses.

    Attributes:
        since: when it first did, in seconds on the monotonic clock.
        refusals: how often it has.
        again: when it is asked again.
    """

    since: float
    refusals: int
    again: float


def lacks_resources(number: int | None) -> bool:
    """Whether an error number only says that a machine lacks resources at present."""
    return number in _REMEDIES


def next_retry(before: StartRetry | None, now: float) -> StartRetry | None:
    """What follows from one more refusal.

    Args:
        before: what the last one has led to; None: this is the first.
        now: seconds on the monotonic clock.

    Returns:
        None: it has been tried for long enough.
    """
    if before is not None and now >= before.since + START_RETRY_TIMEOUT:
        return None
    since, refusals = (before.since, before.refusals + 1) if before else (now, 1)
    return StartRetry(since, refusals, now + START_RETRY_PAUSES.pause(refusals))


def cause(number: int) -> str:
    """What is wrong with the machine, for people."""
    return f"this machine lacks the resources for it ({os.strerror(number)})"


def remedy(number: int) -> str:
    """What people can do about it."""
    return _REMEDIES[number]
