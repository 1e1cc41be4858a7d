"""A node on another machine, at its far end and as it is seen from here."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.hosts.host_plan import SSH_FAILED, NodeBegan, NodeEnded
from elastic_runtime.cli.hosts.listed_hosts import Host
from elastic_runtime.cli.hosts.remote_node import BEGINS, CUT_OFF, LEAVE, environment
from elastic_runtime.cli.hosts.ssh_node import SshNode, ssh_command
from elastic_runtime.errors import EXIT_LEFT, EXIT_USAGE
from elastic_runtime.reporting.console import open_consoles
from tests.processes import wait_for
from tests.unit.cli.hosts.far_machines import FarMachines, order, put_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PATIENCE = 60.0
FAR_END = [sys.executable, "-m", "elastic_runtime.cli.hosts.remote_node"]
# In the place of elastic-run: says what it is asked to do.
NODE = """
import os, signal, time
# No print: it fails in a handler that interrupts another one.
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), os._exit(5)))
os.write(1, b"node\\n")
time.sleep(1000)
"""


class FarEnd:
    """The far end, as the near end speaks with it."""

    def __init__(self, package: Path, changes: str = "") -> None:
        program = f"from elastic_runtime.cli.hosts import remote_node as r; {changes}exit(r.main())"
        command = [sys.executable, "-c", program] if changes else FAR_END
        pipe = subprocess.PIPE
        self.process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.tell(json.dumps(order(package, "n0")).encode() + b"\n")

    def tell(self, words: bytes) -> None:
        self.process.stdin.write(words)
        self.process.stdin.flush()

    def lines(self, count: int) -> list[str]:
        """What it says next."""
        return [self.process.stdout.readline().decode().rstrip() for _ in range(count)]

    def complains(self, words: bytes = b"") -> bool:
        """Whether the next line of its errors begins so."""
        return bool(self.process.stderr.readline().startswith(words))

    def ends(self) -> int:
        return int(self.process.wait(PATIENCE))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory whose ``elastic_runtime`` is such a program, and no more."""
    put_node(tmp_path, NODE)
    return tmp_path


Start = Callable[..., FarEnd]


@pytest.fixture
def start(package: Path) -> Iterator[Start]:
    """Starts far ends, which are closed at the end of the test."""
    started: list[FarEnd] = []

    def begin(changes: str = "") -> FarEnd:
        started.append(FarEnd(package, changes))
        return started[-1]

    yield begin
    for one in started:
        with one.process as process:
            process.kill()


@pytest.fixture
def far_end(start: Start) -> FarEnd:
    """One whose node has begun."""
    found = start()
    assert found.lines(2) == [BEGINS, "node"]
    return found


def test_there_is_one_node_at_a_time(far_end: FarEnd, start: Start) -> None:
    other = start()
    assert other.complains(b"waiting for another node of this run on this")
    far_end.process.kill()  # and its node dies with it
    assert other.lines(2) == [BEGINS, "node"]


def test_nothing_is_left_on_the_machine(
    package: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(package))
    far_end = start()
    assert far_end.lines(2) == [BEGINS, "node"]
    assert [*package.glob("elastic-node-*")]
    other = start()
    assert other.complains()  # it waits
    far_end.tell(LEAVE)
    assert far_end.ends() == EXIT_LEFT
    assert other.lines(2) == [BEGINS, "node"]
    assert [*package.glob("elastic-node-*")]  # its own, and not the one that it waited for
    other.process.stdin.close()
    other.ends()
    assert not [*package.glob("elastic-node-*")]


def test_a_link_of_another_user_is_not_followed(
    package: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(package))
    lock = order(package, "n0")["lock"]
    (package / f"elastic-node-{os.getuid()}-{lock}").symlink_to(package / "elsewhere")
    assert start().ends() == EXIT_USAGE
    assert not (package / "elsewhere").exists()


def test_who_waits_for_the_former_node_may_be_asked_to_leave(far_end: FarEnd, start: Start) -> None:
    other = start()
    other.tell(LEAVE)
    assert other.ends() == EXIT_LEFT


def test_a_near_end_that_says_nothing_more_is_gone(start: Start) -> None:
    silent = start("r.SILENCE = 1.0; ")
    assert silent.lines(3) == [BEGINS, "node", "asked"]
    assert silent.ends() == CUT_OFF  # not as one that somebody has asked to leave


def test_the_environment_is_that_of_both_ends() -> None:
    theirs = {"PATH": "near", "HF_HOME": "x", "SSH_AUTH_SOCK": "y", "TERM": "z", "PWD": "p"}
    ours = {"PATH": "far", "HOME": "/far"}
    assert environment(theirs, ours) == {"PATH": "far", "HOME": "/far", "HF_HOME": "x"}


def test_the_end_of_all_words_asks_the_node_to_leave(far_end: FarEnd) -> None:
    far_end.process.stdin.close()
    assert far_end.lines(1) == ["asked"]
    assert far_end.ends() == CUT_OFF


def test_no_hang_up_ends_it_before_its_node(far_end: FarEnd) -> None:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        far_end.process.send_signal(number)
    far_end.process.stdin.close()
    assert far_end.ends() == CUT_OFF


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "no order for a node has come"),
        (b"hello\n", "no order for a node has come"),
        (
            json.dumps({"directory": "/nowhere", "arguments": [], "environment": {}}).encode(),
            "/nowhere: No such file or directory: a job has the same directory on all",
        ),
    ],
)
def test_what_is_no_order_is_said(line: bytes, said: str) -> None:
    done = subprocess.run(FAR_END, input=line, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == EXIT_USAGE
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


class Seen:
    """A node, what it prints, and what is heard of it."""

    def __init__(self, folder: Path, only_events: bool) -> None:
        self.far = FarMachines(folder)
        self._events: queue.SimpleQueue[NodeBegan | NodeEnded] = queue.SimpleQueue()
        self._outputs = [(folder / name).open("wb") for name in ("out", "err")]
        self._consoles = open_consoles(*(file.fileno() for file in self._outputs), lambda: None)
        self._consoles["stderr"].only_events = only_events
        self._folder = folder

    def start(self, host: str) -> SshNode:
        return SshNode(
            Host(host),
            self.far.ssh,
            self.far.order(Host(host)),
            f"[{host}] ".encode(),
            self._consoles,
            self._events.put,
        )

    def next(self) -> Any:
        return self._events.get(timeout=PATIENCE)

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in (self._folder / "out").read_text(), PATIENCE, text)

    def printed(self) -> tuple[str, str]:
        for console in self._consoles.values():
            console.close()
        return (self._folder / "out").read_text(), (self._folder / "err").read_text()


@pytest.fixture(params=[False])
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Seen]:
    yield (it := Seen(tmp_path, request.param))
    it.printed()
    for file in it._outputs:
        file.close()


def test_the_options_of_a_user_come_first() -> None:
    command = ssh_command(["ssh", "-p", "2222"], "n0", "/a b/python")
    assert command[:3] == ["ssh", "-p", "2222"]
    assert "BatchMode=yes" in command  # nobody is there to type a password
    assert command[-2:] == ["n0", "exec '/a b/python' -m elastic_runtime.cli.hosts.remote_node"]


def test_what_it_prints_is_shown_with_its_name(seen: Seen) -> None:
    node = seen.start("n0")
    assert seen.next() == NodeBegan("n0")
    seen.wait_for("trains")
    node.leave()
    ended = seen.next()
    assert (ended.name, ended.code, ended.began) == ("n0", 5, True)
    # Without what the login shell has said.
    assert seen.printed() == ("[n0] n0 trains --workers 0\n[n0] n0 leaves\n", "[n0] warning\n")


@pytest.mark.parametrize("seen", [True], indirect=True)
def test_where_a_program_reads_all_of_it_is_events(seen: Seen) -> None:
    seen.start("gone")
    seen.next()
    seen.start("n0").leave()
    assert seen.next() == NodeBegan("n0")
    seen.next()
    said = [json.loads(line) for line in seen.printed()[1].splitlines()]
    assert [(one["event"], one["node"], one["line"]) for one in said][:1] == [
        ("agent.line", "gone", "ssh: no route to gone")
    ]
    assert all(one["node"] == "n0" for one in said[1:])


@pytest.mark.parametrize(("host", "code"), [("gone", SSH_FAILED), ("poor", 127)])
def test_one_that_does_not_begin_is_none(seen: Seen, host: str, code: int) -> None:
    seen.start(host)
    ended = seen.next()
    assert (ended.code, ended.began) == (code, False)
    assert seen.printed()[1].startswith(f"[{host}] s")


def test_a_node_can_be_ended_at_once(seen: Seen) -> None:
    node = seen.start("n0")
    seen.next()
    node.kill()
    assert seen.next().code == 137


def test_a_cut_connection_has_the_node_leave(seen: Seen) -> None:
    node = seen.start("n0")
    seen.next()
    node.cut()
    ended = seen.next()
    assert (ended.code, ended.began) == (SSH_FAILED, True)
