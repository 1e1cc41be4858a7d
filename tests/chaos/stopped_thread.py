"""Stops one thread of a process while all its others go on, as a debugger does it (``ptrace``)."""

from __future__ import annotations

import ctypes
import os

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class StoppedThread:
    """The main thread of a child process, which stands still until ``resume``.

    To be made and resumed in the same thread. The process can still be killed.

    Args:
        pid: of the process, a child of this one.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        _ptrace(_SEIZE, pid)
        _ptrace(_INTERRUPT, pid)
        # Otherwise subprocess would take the news of the stop for that of an end.
        os.waitpid(pid, 0)

    def resume(self) -> None:
        """It goes on."""
        _ptrace(_DETACH, self._pid)


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")
