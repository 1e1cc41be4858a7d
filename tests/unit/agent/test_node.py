"""Nodes that were given no name, and the file that says where a node is."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.node_name import own_name
from elastic_runtime.agent.node_topology import with_topology
from elastic_runtime.config import JobConfig
from elastic_runtime.events.node_events import TopologyUnknown
from tests.unit.programs import waiting

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.events import Event


HOST = socket.gethostname()


def test_one_node_has_the_name_of_its_host() -> None:
    with own_name("naming-one") as name:
        assert name == HOST


def test_several_nodes_of_a_run_are_told_apart() -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(own_name("naming-several")) for _ in range(3)]
        other = stack.enter_context(own_name("naming-another"))
        assert names == [HOST, f"{HOST}#2", f"{HOST}#3"]
        assert other == HOST


def test_a_name_is_free_again_when_its_node_has_been_killed() -> None:
    program = """
import sys
from elastic_runtime.agent.node_name import own_name
with own_name("naming-killed") as name:
    print(name, flush=True)
    sys.stdin.read()
"""
    node = waiting(program)
    assert node.stdout is not None
    assert node.stdout.readline().strip() == HOST
    with own_name("naming-killed") as name:
        assert name == f"{HOST}#2"
    node.kill()
    node.communicate()
    with own_name("naming-killed") as name:
        assert name == HOST


def test_a_long_name_of_a_run() -> None:
    with own_name("r" * 500) as name:
        assert name == HOST


# The file that says where this node is: there, late, empty, odd, or never there


PATIENCE = 60.0


def _read(path: Path, timeout: float = 0.0) -> tuple[tuple[str, ...], list[Event]]:
    told: list[Event] = []
    config = with_topology(JobConfig(node_topology_file=str(path)), told.append, timeout=timeout)
    return config.node_topology, told


@pytest.mark.parametrize(("text", "levels"), [("z/b/r\n", ("z", "b", "r")), ("-", ()), ("-\n", ())])
def test_what_is_there_is_taken_at_once(tmp_path: Path, text: str, levels: tuple[str, ...]) -> None:
    path = tmp_path / "topology"
    path.write_text(text)
    assert _read(path) == (levels, [])


def test_a_file_that_is_filled_later_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(_read(path, PATIENCE)))
    reader.start()
    path.touch()
    draft = tmp_path / "draft"
    draft.write_text("z/r")
    draft.rename(path)
    reader.join(PATIENCE)
    assert found == [(("z", "r"), [])]


def _why(path: Path, timeout: float = 0.0) -> str:
    levels, (event,) = _read(path, timeout)
    assert levels == ()
    assert isinstance(event, TopologyUnknown)
    assert str(path) in event.message()
    return event.message()


def test_a_file_that_says_nothing_in_time_is_gone_without(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    assert "cannot be read (No such file or directory) after 0 s" in _why(path)
    path.write_text("\n")
    assert "is still empty after 0 s" in _why(path)
    assert "this node joins without one" in _why(path)


def test_what_is_no_topology_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "topology"
    for data, why in (
        (b"a//b", "level 2 is empty"),
        (b"a\nb\n", "it has several lines"),
        (b"\xff", "it is not UTF-8"),
        (b"x" * 10_000, "level 1 has 4096 characters, of 64"),
    ):
        path.write_bytes(data)
        assert f"has no topology: {why}" in _why(path, PATIENCE)
    path.unlink()
    os.mkfifo(path)  # nobody ever writes into it
    assert "it is no regular file" in _why(path, PATIENCE)


def test_what_the_settings_say_comes_first(tmp_path: Path) -> None:
    told: list[Event] = []
    config = JobConfig(node_topology=("z",), node_topology_file=str(tmp_path / "none"))
    assert with_topology(config, told.append, timeout=PATIENCE) is config
    assert with_topology(JobConfig(), told.append, timeout=PATIENCE) == JobConfig()
    assert told == []
