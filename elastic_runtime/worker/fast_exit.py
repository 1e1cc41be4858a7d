"""Ends a process quickly, in the middle of its program, as others wait for its end.

Taking an interpreter apart that has imported torch lasts for a second and more, most of it spent
in looking at every object once again; in a forked worker that also copies the memory it shares.
And while it lasts, a thread of gloo that still holds the last collective aborts the process now
and then (``terminate called without an active exception``, one exit in ten on a busy machine).
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn


def exit_fast(code: int) -> None:
    """Makes the coming end of this process a quick one.

    What a program can notice is done as always: ``finally`` blocks, threads that are waited for,
    exit functions, files that were left open. Only the interpreter itself is not taken apart.

    Args:
        code: the exit code; below 0 the number of the signal that is to end it, as for Python's own
            end after a ``KeyboardInterrupt`` that nothing catches.
    """
    at_exit = _FastExit(code)
    atexit.register(at_exit)
    at_exit.registered = atexit._ncallbacks()


class EndedOnRequest(SystemExit):
    """The end of a process that was asked to stop."""


def end_on_request(code: int, *, has_agent: bool) -> NoReturn:
    """Ends this process after it was asked to stop.

    Args:
        code: the exit code that tells the agent what became of the state.
        has_agent: False: the request was a SIGTERM, whose sender expects the usual exit code.

    Raises:
        EndedOnRequest: always.
    """
    if not has_agent:
        code = 128 + signal.SIGTERM
    exit_fast(code)
    raise EndedOnRequest(code)


class _FastExit:
    """The last thing that is registered to be done at exit, and so the first to be done."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._begun = False
        self.registered = 0

    def __call__(self) -> None:
        # What was registered even later has been called already, and would be called twice.
        if self._begun or atexit._ncallbacks() != self.registered:
            return
        self._begun = True
        atexit._run_exitfuncs()
        # Objects that the fork server has frozen are not looked at: it leaves no file open.
        for found in (sys.stdout, sys.stderr, *gc.get_objects()):
            if issubclass(type(found), io.IOBase):
                with suppress(Exception):
                    found.flush()
        if self._code < 0:
            signal.signal(-self._code, signal.SIG_DFL)
            os.kill(os.getpid(), -self._code)
        os._exit(self._code if self._code >= 0 else 128 - self._code)  # if the signal is blocked
