"""A worker is a Python process like any other: compared with ``python -u script.py`` itself."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.integration.workers.conftest import ARGS
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import ScriptHarness

SCRIPTS = {
    "guard": """
if __name__ == "__main__":
    print("main")
""",
    "argv": "import sys; print(sys.argv[1:])",
    "attributes of __main__": """
import sys
main = sys.modules["__main__"]
print(main.__dict__ is globals(), __name__, __file__, __spec__, __package__, __doc__, __cached__)
print(type(__builtins__), __loader__.name, __loader__.path, __annotations__)
print(sorted(globals()))
""",
    "docstring and annotations": '"""About."""\nx: int = 1\nprint(__doc__, __annotations__)\n',
    "beside the script": """
import sys
import neighbour
from neighbour import name
print(name, neighbour.__file__, sys.path[0])
""",
    "no server in it": """
import os, signal, sys, threading
print(os.getpid() == os.getsid(0), [thread.name for thread in threading.enumerate()])
print(signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
for number in signal.valid_signals():
    print(number, signal.getsignal(number))
descriptors = os.listdir("/proc/self/fd")
print([fd for fd in descriptors if os.path.exists(f"/proc/self/fd/{fd}")], sys.stdin.read())
""",
    "pickle of a class in __main__": """
import pickle
class Point:
    def __init__(self, x): self.x = x
data = pickle.dumps(Point(3))
print(b"__main__" in data, pickle.loads(data).x)
""",
    "source of a function": """
import inspect
def one():
    return 1
print(inspect.getsource(one))
""",
    "subprocess of multiprocessing": """
import multiprocessing
def child(queue): queue.put(__name__)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
        print(process.exitcode)
""",
    "a fork": """
import os
pid = os.fork()
if pid == 0:
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    "a child of a thread that ends": """
import multiprocessing, os, threading, time
def child(pipe): pipe.recv(); pipe.send("still here")
mine, its = multiprocessing.Pipe()
def start():
    multiprocessing.get_context("fork").Process(target=child, args=(its,)).start()
thread = threading.Thread(target=start)
thread.start()
thread.join()
mine.send("go")
print(mine.recv())
""",
    "end of the file": "pass",
    "exit code": "import sys; sys.exit(3)",
    "exit code beyond a byte": "import sys; sys.exit(300)",
    "negative exit code": "import sys; sys.exit(-1)",
    "exit with None": "raise SystemExit",
    "exit in a thread": """
import sys, threading
thread = threading.Thread(target=sys.exit, args=(9,))
thread.start()
thread.join()
""",
    "exit in atexit": """
import atexit, sys
atexit.register(print, "last")
def leave(): sys.exit(9)
atexit.register(leave)
""",
    "atexit that fails": """
import atexit
def fails(): raise ValueError("late")
atexit.register(fails)
""",
    "finally": """
import sys
try:
    sys.exit(4)
finally:
    print("finally")
""",
    "exit with True": "raise SystemExit(True)",
    "exit with a text": "import sys; sys.exit('not like this')",
    "os._exit": "import os; print('printed'); os._exit(7)",
    "unflushed print without a newline": "print('no newline', end='')",
    "unflushed file": """
import os
file = open(os.environ["SCRATCH"], "w")
file.write("kept")
""",
    "atexit": """
import atexit
atexit.register(print, "first registered")
atexit.register(print, "last registered")
print("end of the script")
""",
    "threads": """
import threading
started, go = threading.Event(), threading.Event()
def waited_for():
    started.set(); go.wait(); print("waited for")
threading.Thread(target=waited_for).start()
started.wait()
threading.Thread(target=threading.Event().wait, daemon=True).start()
threading.Timer(0.05, go.set).start()
print("end of the script")
""",
    "exception": """
def inner(): raise ValueError("no such thing")
def outer(): inner()
outer()
""",
    "exception with a cause": """
try:
    {}["key"]
except KeyError as error:
    raise RuntimeError("wrapped") from error
""",
    "exception in an import": "import broken_neighbour",
    "missing module": "import there_is_no_such_module",
    "syntax error": "print('never')\ndef f(:\n",
    "own excepthook": """
import sys
sys.excepthook = lambda kind, error, trace: print("hook", kind, error)
raise ValueError("seen")
""",
    "exception and atexit": """
import atexit
atexit.register(print, "still run")
raise ValueError("no")
""",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "bytes that are no text": """
import sys
sys.stdout.buffer.write(b"\\xff\\xfe plain\\n")
""",
    "encoding of the source": "# -*- coding: latin-1 -*-\nprint('\u00e9')\n",
}


@pytest.fixture(autouse=True)
def neighbours(harness: ScriptHarness) -> None:
    (harness.directory / "neighbour.py").write_text("name = 'a neighbour'\n")
    (harness.directory / "broken_neighbour.py").write_text("def f():\n    return 1 / 0\nf()\n")


@pytest.mark.parametrize("what", SCRIPTS)
def test_same_end_and_same_output(harness: ScriptHarness, what: str) -> None:
    encoding = "latin-1" if "encoding" in what else "utf-8"
    harness.script.write_bytes(SCRIPTS[what].encode(encoding))
    scratch = harness.directory / "scratch"
    scratch.unlink(missing_ok=True)
    args = [arg.replace("${local_rank}", "0") for arg in ARGS]
    plain = subprocess.run(
        [sys.executable, "-u", str(harness.script), *args],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**harness.workers_environment(), "SCRATCH": str(scratch)},
        start_new_session=True,
    )
    left = scratch.read_text() if scratch.exists() else ""
    scratch.unlink(missing_ok=True)

    (ended,) = harness.run(0, SCRATCH=str(scratch))

    assert ended.code == plain.returncode, harness.story()
    for path, expected in ((harness.stdout, plain.stdout), (harness.stderr, plain.stderr)):
        wait_for(partial(_shows, path, expected), 5, f"{expected!r} in {path.name}", harness.story)
    assert (scratch.read_text() if scratch.exists() else "") == left


def _shows(path: Path, expected: bytes) -> bool:
    # What a worker has left unfinished is ended, so that the next line is one of its own.
    if expected and not expected.endswith(b"\n"):
        expected += b"\n"
    shown = path.read_bytes().replace(b"[default0]:", b"")
    return re.sub(b"0x[0-9a-f]+", b"0x", shown) == re.sub(b"0x[0-9a-f]+", b"0x", expected)
