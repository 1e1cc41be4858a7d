"""How one process learns at once that another begins to die: a lock that the kernel takes from it.

A process that is killed gives back its memory first, then closes its files, and only then its
parent and its peers hear of it. That takes 10 to 25 ms for each GiB that it has touched. The kernel
takes a *robust* mutex from its owner before all that, whatever ends it. So a worker holds one, in
memory that it shares with its agent, and a thread of the agent waits for it.
(pthread_mutexattr_setrobust(3); Documentation/locking/robust-futexes.rst of Linux.)
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from contextlib import suppress

# The file: which C library has made the mutex, as another one may lay it out differently; then it.
_NAME_BYTES = 64
_SIZE = 128
# pthread.h of glibc: PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST.
_SHARED, _ROBUST = 1, 1
# Larger than any pthread_mutexattr_t.
_ATTRIBUTE_BYTES = 64
# linux/sched.h: the thread is ending. Fields of /proc/PID/stat, from the state on: proc(5).
_PF_EXITING = 0x4
_FLAGS, _EXIT_CODE = 6, 49

# For how long a mutex is waited for before it is looked whether its process is there, in seconds.
_LOOKS = 10


class _Moment(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Mutex:
    """A mutex in a file."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._start = ctypes.c_char.from_buffer(self._map, _NAME_BYTES)
        self._library = ctypes.CDLL(None)
        self._address = ctypes.c_void_p(ctypes.addressof(self._start))

    @property
    def is_of_this_library(self) -> bool:
        return self._map[:_NAME_BYTES] == _library_name()

    def begin(self) -> None:
        attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
        self._library.pthread_mutexattr_init(attributes)
        self._library.pthread_mutexattr_setpshared(attributes, _SHARED)
        self._library.pthread_mutexattr_setrobust(attributes, _ROBUST)
        self._library.pthread_mutex_init(self._address, attributes)

    def try_to_lock(self) -> bool:
        found = int(self._library.pthread_mutex_trylock(self._address))
        if found == errno.EOWNERDEAD:  # another process held it before: nobody waits for it now
            self._library.pthread_mutex_unlock(self._address)
        return found == 0

    def keep(self) -> None:
        """Keeps it mapped whatever Python does at its end: else the kernel would not find it."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def await_death(self, pid: int) -> bool:
        """Waits until its owner, this process, ends; False: that was not noticed."""
        found = errno.ETIMEDOUT
        while found == errno.ETIMEDOUT and os.path.exists(f"/proc/{pid}"):
            until = _Moment(int(time.time()) + _LOOKS, 0)
            found = int(self._library.pthread_mutex_timedlock(self._address, ctypes.byref(until)))
        if found in (0, errno.EOWNERDEAD):
            # Else this thread would have it in its own list of robust mutexes.
            self._library.pthread_mutex_unlock(self._address)
        return found == errno.EOWNERDEAD

    def close(self) -> None:
        del self._start
        self._map.close()


def make(path: str) -> None:
    """Makes the file through which the death of a thread can be noticed.

    Args:
        path: must not exist.

    Raises:
        OSError: it cannot be made, or this system has no such mutexes.
    """
    name = _library_name()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Written, so that a full disk is an error here and not a SIGBUS later.
        os.write(descriptor, name + bytes(_SIZE - len(name)))
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    mutex = _Mutex(path)
    mutex.begin()
    mutex.close()


def _library_name() -> bytes:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        name = ""
    if not name:
        raise OSError(errno.ENOSYS, "no GNU C library")
    return name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")


def hold(path: str) -> bool:
    """Has the death of the calling thread be noticed by whoever awaits it.

    Args:
        path: a file that ``make`` has made.

    Returns:
        Whether it will be.
    """
    with suppress(OSError):
        mutex = _Mutex(path)
        if mutex.is_of_this_library and mutex.try_to_lock():
            mutex.keep()
            return True
        mutex.close()
    return False


def await_death(path: str, pid: int) -> int | None:
    """Waits until the first thread of a process, which holds a file, begins to end.

    Args:
        path: the file. Nobody may wait before it is held.
        pid: the process, of the same user.

    Returns:
        The process's exit code, negative for a signal. None: it has ended well, or is gone without
        a trace, or goes on as another program.
    """
    try:
        mutex = _Mutex(path)
    except OSError:
        return None
    died = mutex.await_death(pid)
    mutex.close()
    return _exit_code(pid) if died else None


def _exit_code(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        flags, status = int(fields[_FLAGS]), int(fields[_EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return None
    # A program that replaces itself (exec) gives the mutex up as well. And a first thread that ends
    # alone by pthread_exit has the status 0.
    if not flags & _PF_EXITING or not status:
        return None
    return os.waitstatus_to_exitcode(status)
