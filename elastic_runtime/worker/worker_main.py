"""The first and the last code in a Python worker; which of its errors only say that a peer is gone.

The script runs as the one real ``__main__`` of the process, at the bottom of its only stack, so
that everything after it (exit codes, atexit, threads that are waited for) is the interpreter's
own doing. What is added is small: a traceback left in torch's error file, and children that do
not outlive the worker.

In a fresh interpreter this file is run by its path (``python -u …/worker_main.py script x.py``),
and so uses nothing but the standard library: any interpreter can run it, and a script that fails
at once has not waited for torch.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import os
import re
import signal
import sys
import threading
import types
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Errors that only say that a peer, or the connection to it, is gone, and that only torch raises:
# types of its own, and gloo's errors, which begin with the place in its source.
_ECHO = re.compile(
    r"(torch\.distributed\.)?Dist(Backend|Network|Store)Error\b"
    r"|RuntimeError: \[[^\]\n]*\bgloo/[^\]\n]+:\d+\]"
)
# Words that others may use as well; they count only in what torch itself has raised.
_ECHO_WORDS = re.compile(
    r"Connection (closed|reset) by peer|connectFullMesh|gloo[/:\]]|NCCL error|ProcessGroupNCCL"
    r"|Broken pipe|Connection refused|Timed out waiting|[Ss]ocket [Tt]imeout|remote process exited",
)
# Where torch calls a collective, or the backward pass that contains one.
_COLLECTIVES = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "autograd", ""),
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    os.path.join("torch", "_ops.py"),
    os.path.join("elastic_runtime", "worker", ""),
    os.path.join("elastic_runtime", "system", "torch_private.py"),  # through which groups are made
)

# Of torch, when DDP or a group is made where there are no groups.
_NO_GROUPS = "Default process group has not been initialized"
_GROUPS_OF_TRAIN = (
    "under elastic.run the groups exist only inside train(world): wrap the model there, with "
    "elastic.ddp(model), and take the rank from world.rank; a seed of each rank can be made of "
    "os.environ['RANK'], and an elastic.DataLoader needs none"
)

# torch's name for the file in which a failing worker leaves its traceback.
ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_PR_SET_PDEATHSIG = 1

# What is longer in an error file is cut, in characters.
_LONGEST_MESSAGE = 1 << 16
_LONGEST_TRACEBACK = 1 << 20

# A module that is no longer in sys.modules is emptied; this one's code is still on the stack.
_replaced: list[types.ModuleType] = []


def run(kind: str, target: str, args: Sequence[str]) -> None:
    """Runs a script or a module as ``__main__``, as ``python`` itself would.

    Args:
        kind: ``script`` or ``module``.
        target: the script's path or the module's name.
        args: its arguments.

    Raises:
        BaseException: whatever ends the script; it has been reported, and is to end the process.
    """
    _prepare()
    sys.argv = [target, *args]
    try:
        if kind == "module":
            _look_first_in(_working_directory())
            _run_module(target)
        else:
            _look_first_in(os.path.dirname(os.path.realpath(target)))
            _run_script(os.path.abspath(target))
    except BaseException as error:
        _report(error)
        raise


def run_function(payload: int, result: int) -> None:
    """Calls the function that the agent has sent.

    The payload is a pickle, made by the agent that this process belongs to and read from a
    descriptor that only the two have; it never was a file with a name.

    Args:
        payload: descriptor of ``(preparation, pickled (function, arguments))``.
        result: descriptor that takes the pickled return value.

    Raises:
        BaseException: whatever ends the function; it has been reported.
    """
    import mmap
    import pickle
    from multiprocessing import process, spawn

    _prepare()
    try:
        # Mapped, not read: the descriptor's position is shared with the other workers.
        with mmap.mmap(payload, 0, access=mmap.ACCESS_READ) as sent:
            preparation, call = pickle.loads(sent)
        os.close(payload)
        # As in a child of multiprocessing: the launching script is imported as __mp_main__, and
        # one that launches again while it is imported is told about ``if __name__ == …``.
        process.current_process()._inheriting = True  # type: ignore[attr-defined]
        try:
            spawn.prepare(preparation)
            function, args = pickle.loads(call)
        finally:
            del process.current_process()._inheriting  # type: ignore[attr-defined]
        value = function(*args)
        with open(result, "wb") as stream:
            pickle.dump(value, stream)
    except BaseException as error:
        _report(error)
        raise


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Asks the kernel to signal this process when the thread that made it ends.

    Args:
        parent: the process that it is to follow; if that is gone already, this one ends here.
        signum: the signal.
    """
    libc().prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signum)


def libc() -> ctypes.CDLL:
    """The C library, for the calls that Python has no name for."""
    return ctypes.CDLL(None)


class _Forks:
    """Makes the processes that this one forks follow it into its end.

    The kernel ties the signal to the forking *thread*. A child of a thread that ends early, such
    as one of a pool, must be left alone: the end of its process group takes care of it.
    """

    def __init__(self) -> None:
        self._parent = threading.local()

    def before(self) -> None:
        process = os.getpid()
        self._parent.pid = process if threading.get_native_id() == process else 0

    def in_child(self) -> None:
        if self._parent.pid:
            die_with(self._parent.pid)


def _prepare() -> None:
    """Sets up a process that is about to run the user's code."""
    forks = _Forks()
    os.register_at_fork(before=forks.before, after_in_child=forks.in_child)
    try:
        faulthandler.enable(all_threads=True)
    except (ValueError, RuntimeError, AttributeError):
        pass  # stderr is closed or no file: there is nowhere to write to
    _replaced.append(sys.modules["__main__"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=builtins)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed while the job ran; the module may lie elsewhere
        return ""


def _look_first_in(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def _run_script(path: str) -> None:
    main = sys.modules["__main__"]
    vars(main).update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
    )
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _run_module(name: str) -> None:
    import runpy

    # What ``python -m`` itself calls; it fills the module that is __main__ now.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _report(error: BaseException) -> None:
    """Shows the error without the frames of this file, and keeps it for the agent."""
    if isinstance(error, SystemExit):
        return
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    if _is_before_train(error):
        error.add_note(_GROUPS_OF_TRAIN)
    path = os.environ.get(ENV_ERROR_FILE)
    if path and isinstance(error, Exception):
        write_error_file(path, error)
    if _is(error, "ElasticError"):
        # It says all there is to say; the frames would be ours.
        sys.stderr.write(f"{_said(error)}\n")
    elif "ELASTIC_ROUND" in os.environ and _is_end_of_a_peer(error):
        # Every survivor of a fault ends like this; its traceback is in the error file.
        said = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        sys.stderr.write(f"lost the connection to a peer ({said}); the agent decides what next\n")
    else:
        sys.excepthook(type(error), error, trace)
    # The error then ends the process as usual, and must not be shown twice.
    sys.excepthook = lambda *_: None


def is_echo(error: BaseException) -> bool:
    """Whether an error, or what led to it, comes from a collective that has lost a peer.

    What the script says of its own connections is no such thing, whatever words it takes: it
    counts who has raised the error.

    Args:
        error: as it was caught, with its traceback. What led to it counts as far as Python would
            show it.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        if _is(one, "UsageError"):
            return False
        if _is_of_a_collective(one):
            return True
        seen.add(id(one))
        shown = None if one.__suppress_context__ else one.__context__
        one = shown if one.__cause__ is None else one.__cause__
    return False


def _is_end_of_a_peer(error: BaseException) -> bool:
    """The same in a process whose environment says that it is not alone: else it has no peers."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and is_echo(error)


def _is_of_a_collective(error: BaseException) -> bool:
    said = f"{type(error).__name__}: {error}"
    if says_echo(said):
        return True
    return (
        type(error) is RuntimeError
        and bool(_ECHO_WORDS.search(said))
        and any(part in _raised_in(error) for part in _COLLECTIVES)
    )


def _raised_in(error: BaseException) -> str:
    """The file of the innermost frame."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename


def says_echo(message: str) -> bool:
    """Whether an error of which only the text is known says by itself that a peer went away.

    Args:
        message: the exception's type, a colon, and its text.
    """
    return bool(_ECHO.match(message))


def _is(error: BaseException, name: str) -> bool:
    """Whether it is such an error of this package, which need not be importable here."""
    return any(
        (cls.__module__, cls.__name__) == ("elastic_runtime.errors", name)
        for cls in type(error).__mro__
    )


def _said(error: BaseException) -> str:
    """What an error says; of a mistake of the script's also where in the script it was made."""
    said = f"{type(error).__name__}: {error}"
    if not _is(error, "UsageError"):
        return said
    # The code that raises this error has imported the package.
    from elastic_runtime.worker.recovery.thread_inspection import met

    where = met(error.__traceback__)
    return f"{said} (at {where})" if where else said


def _is_before_train(error: BaseException) -> bool:
    """Whether a script that uses this package wants groups that only ``train`` has."""
    if not isinstance(error, ValueError) or not str(error).startswith(_NO_GROUPS):
        return False
    package = sys.modules.get("elastic_runtime")
    held = list(vars(sys.modules["__main__"]).values())
    modules = [str(getattr(one, "__module__", "")) for one in held]
    return (package is not None and any(one is package for one in held)) or any(
        name.startswith("elastic_runtime.") for name in modules
    )


def write_error_file(path: str, error: BaseException) -> None:
    """Writes what torch's ``ErrorHandler.record_exception`` writes, unless it has done so already.

    The file is there as a whole or not at all, also if this process is killed meanwhile.

    Args:
        path: the file; one that exists is left as it is.
        error: the exception that ends the worker.
    """
    import json
    import time
    import traceback

    message: dict[str, object] = {"message": _said(error)[:_LONGEST_MESSAGE]}
    extra: dict[str, object] = {"timestamp": str(int(time.time()))}
    early = _is_before_train(error)
    if early:
        message["message"] = f"{type(error).__name__}: {_GROUPS_OF_TRAIN} ({error})"
    if early or _is(error, "UsageError"):
        extra["exit_code"] = 2
    ours = _is(error, "ElasticError")
    shown = "" if ours else "".join(traceback.format_exception(error))
    extra["py_callstack"] = shown[-_LONGEST_TRACEBACK:]
    extra["echo"] = _is_end_of_a_peer(error)
    message["extraInfo"] = extra
    draft = f"{path}.{os.getpid()}"
    try:
        try:
            with open(draft, "x") as file:
                json.dump({"message": message}, file)
            _put_in_place(draft, path)
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
    except OSError as failure:
        sys.stderr.write(f"the error file {path} cannot be written: {failure.strerror}\n")


def _put_in_place(draft: str, path: str) -> None:
    """Gives a file its name, unless that is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # no hard links here
        if not os.path.lexists(path):
            os.rename(draft, path)


def _patch_torch() -> None:
    try:
        from elastic_runtime.worker.torch_patches import patch_when_imported
    except ImportError:  # another interpreter than the agent's, which does without
        return
    patch_when_imported()


def _main() -> None:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    _patch_torch()
    kind, *rest = sys.argv[1:]
    if kind == "function":
        run_function(int(rest[0]), int(rest[1]))
    else:
        run(kind, rest[0], rest[1:])


if __name__ == "__main__":
    _main()
