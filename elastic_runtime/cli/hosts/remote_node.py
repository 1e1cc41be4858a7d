"""The far end of a node that was started over ssh: it ends with its connection.

``python -m elastic_runtime.cli.hosts.remote_node`` reads one line of JSON from its input
(``directory``, ``arguments``, ``environment``, ``lock``), answers with a line of its own, and
starts the node. Afterwards each byte is a word of the near end: ``LEAVE``, ``KILL``, or ``HERE``,
which comes again and again. The end of the input means that the near end is gone, and ``SILENCE``
that the way to it is: the node is asked to leave then, and killed after a while. Nothing here
imports more than Python's own library.

There is one node of a job at a time on a machine: one that is started again waits for the end of
the former one, whose connection may have been lost at the near end only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress

LEAVE, KILL, HERE = b"l", b"k", b"."
# What is printed once the node begins; before it, a login shell may print what it likes.
BEGINS = "elastic-run begins here"
# Seconds without a word after which the connection counts as lost; a word comes every few.
SILENCE = 30.0
# Seconds that a node has to leave when the connection is gone.
ALONE = 60.0
# What is returned if the connection has ended the node; ssh, too, ends so where it is lost.
CUT_OFF = 255
_LOOK = 0.2  # seconds between two looks at a lock
_WAITS = (
    "waiting for another node of this run on this machine to end: a former one, or that of another "
    "elastic-run with the same --run-id"
)
_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)
# What belongs to a session, and not to a job.
_OF_SESSION = ("SSH_", "XDG_", "DBUS_", "DISPLAY", "XAUTHORITY", "TERM", "TMUX", "STY", "WINDOWID")
_LOGGED_IN = ("PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "MAIL", "LS_COLORS", "BASH_ENV")


def environment(theirs: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """The node's environment: what the far machine has, and what else the near end has said. Pure.

    Args:
        theirs: of the near end.
        ours: of the far machine: its own paths, user and language.
    """
    taken = {
        name: value
        for name, value in theirs.items()
        if not name.startswith(_OF_SESSION) and name not in _LOGGED_IN
    }
    return {**taken, **ours}


def _tied_to(parent: int) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _next_word(patience: float) -> bytes:
    """The next word; none if the near end is gone, or has been silent for so long."""
    ready, _, _ = select.select([0], [], [], patience)
    return os.read(0, 1) if ready else b""


def _obey(node: subprocess.Popen[bytes], lost: threading.Event) -> None:
    """Does what the near end says, until it says nothing more."""
    while word := _next_word(SILENCE):
        if word != HERE:
            with suppress(ProcessLookupError):
                node.send_signal(signal.SIGKILL if word == KILL else signal.SIGTERM)
    lost.set()
    with suppress(ProcessLookupError):
        node.terminate()
    try:
        node.wait(ALONE)
    except subprocess.TimeoutExpired:
        node.kill()


def _first_line() -> bytes:
    """The order; read byte by byte, as what follows is for later."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def _take(lock: str) -> str:
    """Waits until this is the only node of the job on this machine.

    Returns:
        The file that says so; "": it is asked to leave before, or the near end is gone.
    """
    path = os.path.join(tempfile.gettempdir(), f"elastic-node-{os.getuid()}-{lock}")
    told, heard = False, time.monotonic()
    while not _held(path):
        if not told:
            print(_WAITS, file=sys.stderr, flush=True)
            told = True
        ready, _, _ = select.select([0], [], [], _LOOK)
        if ready:
            if os.read(0, 1) != HERE:
                return ""
            heard = time.monotonic()
        elif time.monotonic() > heard + SILENCE:
            return ""
    return path


def _held(path: str) -> bool:
    """Takes the lock, if nobody has it."""
    # Of this process alone: it ends with it, whatever its node has started. Another user may have
    # put a link there.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The one who had it has removed the file, and a third one may have made it anew.
        if os.path.samestat(os.fstat(file), os.lstat(path)):
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(file)
    return False


def _run(order: dict[str, object]) -> int:
    me = os.getpid()
    arguments, theirs = order["arguments"], order["environment"]
    assert isinstance(arguments, list)
    assert isinstance(theirs, dict)
    node = subprocess.Popen(
        [sys.executable, "-m", "elastic_runtime.cli.run.host_node", *arguments],
        env=environment(theirs, dict(os.environ)),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _tied_to(me),
    )
    lost = threading.Event()
    threading.Thread(target=_obey, args=(node, lost), daemon=True).start()
    code = node.wait()
    if lost.is_set():  # nobody has asked the node to leave: it is to come back
        return CUT_OFF
    return code if code >= 0 else 128 - code


def main() -> int:
    """Runs the node, and ends as it does."""
    # Not even a hang-up of the connection ends it before its node.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    try:
        order = json.loads(_first_line())
        os.chdir(order["directory"])
    except (ValueError, KeyError, TypeError):
        print("no order for a node has come", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{order['directory']}: {error.strerror or error}"
        print(f"{where}: a job has the same directory on all its machines", file=sys.stderr)
        return 2
    try:
        mine = _take(order["lock"])
    except OSError as error:
        where = error.filename or "no folder for temporary files"
        print(f"{where}: {error.strerror or error}", file=sys.stderr)
        return 2
    if not mine:
        return 5
    print(BEGINS, flush=True)
    try:
        return _run(order)
    except OSError as error:  # such as no room for another process
        print(f"the node cannot be started: {error.strerror or error}", file=sys.stderr)
        return 6
    finally:
        with suppress(OSError):
            os.unlink(mine)


if __name__ == "__main__":
    os._exit(main())
