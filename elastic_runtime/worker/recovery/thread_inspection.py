"""Where a thread is, whether it waits for other ranks, and how to raise an error in it."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

# Where a thread is while it waits for a collective, or for the backward pass that contains one.
_COLLECTIVE = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "autograd", "graph.py"),
    # A thread that waits for the GPU waits for what is queued there, and so for collectives.
    os.path.join("torch", "cuda", ""),
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    os.path.join("elastic_runtime", "worker", ""),
    os.path.join("elastic_runtime", "training", ""),
)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")
_EXAMPLES = os.path.join(_PACKAGE, "examples", "")
# What a person does not look for: installed packages, and Python's own library.
_LIBRARIES = (
    "site-packages",
    "dist-packages",
    os.path.dirname(os.__file__),
    "<frozen ",
)


def of(thread: int) -> tuple[bool, str]:
    """Looks at the innermost frame of a thread.

    Args:
        thread: its identity, as of ``threading.get_ident``.

    Returns:
        Whether it waits for other ranks, as far as the frame shows; and the place, for people: the
        innermost one outside of libraries, if there is one.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return False, "nowhere"
    collective = any(part in frame.f_code.co_filename for part in _COLLECTIVE)
    shown = frame
    while shown.f_back is not None and _is_library(shown.f_code.co_filename):
        shown = shown.f_back
    code = shown.f_code
    return collective, f"{os.path.basename(code.co_filename)}:{shown.f_lineno} in {code.co_name}"


def met(trace: TracebackType | None) -> str:
    """The innermost place outside of libraries at which an error was met, for people.

    Args:
        trace: of the error.

    Returns:
        File, line and function; "" if the error has come through libraries only.
    """
    where = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not _is_library(code.co_filename):
            where = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return where


def in_script(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins where this package has called the script.

    Args:
        trace: of an error, from the outermost file of this package on.

    Returns:
        That part; all of it if the error came from elsewhere.
    """
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        rest = rest.tb_next
    return trace if rest is None or _is_library(rest.tb_frame.f_code.co_filename) else rest


def _is_library(file: str) -> bool:
    """Whether a file is no script of a user's; our examples are scripts like theirs."""
    own = file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)
    made = file == "<string>"  # by a library, such as the __init__ of a dataclass
    return own or made or any(part in file for part in _LIBRARIES)


def throw(thread: int, error: type[BaseException]) -> None:
    """Raises an exception in a thread, as soon as it runs Python code.

    Args:
        thread: its identity.
        error: what to raise; made there, without arguments.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
