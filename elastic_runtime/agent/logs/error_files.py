"""The files in which workers leave their errors: read with suspicion.

A worker may be killed in the middle of writing its file, the disk may be full, and a script may
write there what it likes. Whatever is found, it never harms the agent; and torch's own reader,
which trusts its file, never sees it.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_runtime.agent.lifecycle.fault_classification import parse_error_file

if TYPE_CHECKING:
    from elastic_runtime.agent.lifecycle.fault_classification import WorkerError

# A traceback has some kilobytes.
_LARGEST = 1 << 22
_LAST_MOMENT = float(1 << 32)  # of a clock that can be believed, in seconds since the epoch


def read_error_file(path: str) -> WorkerError | None:
    """Reads what a worker has left.

    Args:
        path: of its error file, which need not be there.

    Returns:
        None if there is nothing that can be understood.
    """
    data = read_regular(path)
    return None if data is None else parse_error_file(data)


def read_regular(path: str) -> bytes | None:
    """Reads a small file that somebody else has written.

    Returns:
        None if there is none, if it is none that can be read without waiting, or too large.
    """
    try:
        # Whatever lies there is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        return os.pread(descriptor, _LARGEST, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def failure(
    local_rank: int, pid: int, code: int, path: str, error: WorkerError | None
) -> ProcessFailure:
    """torch's description of a failed worker, made of what was understood of its error file.

    Args:
        local_rank, pid, code: the worker, and its exit code.
        path: of its error file.
        error: what was read there.
    """
    # torch reads no file that has no name. It does not check what it reads, and raises.
    found = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=code, error_file="")
    if error is not None:
        believable = 0 < error.timestamp < _LAST_MOMENT
        moment = int(error.timestamp if believable else time.time())
        extra = {"py_callstack": error.traceback, "timestamp": str(moment)}
        message = {"message": error.message, "extraInfo": extra}
        found.error_file, found.error_file_data = path, {"message": message}
        found.message, found.timestamp = message, moment
    return found
