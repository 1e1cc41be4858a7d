"""What workers read from standard input."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import COMMAND, Entry

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin, ScriptHarness

PATIENCE = 60.0
READS_A_LINE = """
import os, sys
said = b""
while not said.endswith(b"\\n") and (byte := os.read(0, 1)):
    said += byte
print("got", said.decode().strip(), "in", os.environ["RANK"])
"""
ASKS = """
import sys
x = 40
try:
    breakpoint()
    print("the answer is", x, input("more? "), sys.stdin.isatty())
except BaseException as error:
    print("nothing to read:", type(error).__name__)
"""
# In a session of its own, with the terminal that controls it.
LAUNCHES = """
import os, subprocess, sys
command = [sys.executable, "-m", "elastic_runtime", "--min", "1", *sys.argv[2:]]
group = {"process_group": 0} if sys.argv[1] == "background" else {}
sys.exit(subprocess.run(command, **group).returncode)
"""


def test_the_first_worker_reads_and_the_next_one_reads_on(harness: ScriptHarness) -> None:
    with harness.stdin.open("a") as typed:
        typed.write("one\ntwo\n")
    harness.write(READS_A_LINE)
    assert [ended.code for ended in harness.run()] == [0, 0]
    harness.prints("got one in 0\n")
    harness.prints("got  in 1\n")  # there is nothing for the others
    harness.run(0)
    harness.prints("got two in 0\n")
    harness.write("import sys; print('at the end', sys.stdin.read(), input.__name__)")
    harness.run(0)
    harness.prints("at the end  input")
    with harness.stdin.open("a") as typed:
        typed.write("three\nfour\n")
    harness.write("import sys; print([input(), *sys.stdin])")
    harness.run(0)
    harness.prints(r"['three', 'four\n']")


def test_a_program_reads_as_well(begin: Begin) -> None:
    harness = begin(Entry(COMMAND, "cat"))
    harness.stdin.write_text("for the cat\n")
    (ended,) = harness.run()
    assert ended.code == 0
    harness.prints("for the cat")


@pytest.mark.parametrize("place", ["foreground", "background"])
def test_a_terminal(tmp_path: Path, place: str) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "launches.py").write_text(LAUNCHES)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "launches.py", place, "asks.py"])
    screen = _Screen(terminal)
    if place == "foreground":
        screen.shows("(Pdb) ")
        os.write(terminal, b"x = 42\n")
        os.write(terminal, b"c\n")
        screen.shows("more? ")
        os.write(terminal, b"yes\n")
        screen.shows("the answer is 42 yes True")
    else:
        screen.shows("nothing to read: BdbQuit")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, screen.text
    os.close(terminal)


class _Screen:
    """What a terminal has shown."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.text = ""

    def shows(self, text: str) -> None:
        """Waits until it has shown this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, self.text
            self.text += os.read(self._terminal, 4096).decode()
