"""A node on another machine, as it is seen from here."""

from __future__ import annotations

import json
import queue
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.hosts.host_plan import SSH_FAILED, NodeBegan, NodeEnded
from elastic_runtime.cli.hosts.listed_hosts import Host
from elastic_runtime.cli.hosts.ssh_node import SshNode, ssh_command
from elastic_runtime.reporting.console import open_consoles
from tests.processes import wait_for
from tests.unit.cli.hosts.far_machines import FarMachines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


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

    def next(self) -> NodeBegan | NodeEnded:
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
    assert isinstance(ended, NodeEnded)
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
    assert isinstance(ended, NodeEnded)
    assert (ended.code, ended.began) == (code, False)
    assert seen.printed()[1].startswith(f"[{host}] s")


def test_a_node_can_be_ended_at_once(seen: Seen) -> None:
    node = seen.start("n0")
    seen.next()
    node.kill()
    ended = seen.next()
    assert isinstance(ended, NodeEnded)
    assert ended.code == 137


def test_a_cut_connection_has_the_node_leave(seen: Seen) -> None:
    node = seen.start("n0")
    seen.next()
    node.cut()
    ended = seen.next()
    assert isinstance(ended, NodeEnded)
    assert (ended.code, ended.began) == (SSH_FAILED, True)
