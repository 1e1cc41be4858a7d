"""Several local nodes, real ones: signals are passed on, and nobody stays behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from tests.processes import Launcher, elastic_run, marked, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCRIPT = """
import os, pathlib, time
pathlib.Path(f"started-{os.environ['ELASTIC_NODE_NAME']}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


@dataclass
class _Job:
    """``elastic-run --local-nodes 2`` whose script waits for the file ``go``."""

    folder: Path
    mark: str
    process: subprocess.Popen[str]

    def started(self) -> tuple[list[str], dict[str, int]]:
        """How to reach its store, and the process of each node, once all run their script."""
        assert self.process.stderr is not None
        command, nodes = "", dict[str, int]()
        for line in self.process.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "job.join_command":
                command = event["command"]
            if event.get("event") == "local.started":
                nodes = dict(zip(event["nodes"], event["pids"], strict=True))
                break
        for name in nodes:
            wait_for((self.folder / f"started-{name}").exists, 120, f"the start of {name}")
        words = shlex.split(command)
        at = words.index("--rdzv-endpoint")
        return words[at : at + 4], nodes

    def end(self) -> int:
        """Its exit code."""
        return self.process.wait(timeout=100)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[_Job]:
    (tmp_path / "train.py").write_text(_SCRIPT)
    environ = {"ELASTIC_GRACE": "5", "ELASTIC_COLD": "1"}
    with Launcher(tmp_path) as launch:
        words = ("--local-nodes", "2", "train.py")
        process = launch(*words, environ=environ, stderr=subprocess.PIPE, text=True)
        yield _Job(tmp_path, launch.mark, process)


@pytest.mark.users_start
@pytest.mark.golden("--local-nodes: a node is killed")
def test_a_killed_node_does_not_fail_the_others(
    job: _Job, capsys: pytest.CaptureFixture[str]
) -> None:
    where, nodes = job.started()
    assert elasticctl(["status", "--format", "json", *where]) == 0
    told = json.loads(capsys.readouterr().out)
    # They are told in the order of their ranks, which is that of their arrival.
    assert {n["name"]: n["role"] for n in told["nodes"]} == dict.fromkeys(nodes, "member")
    assert all(node["answers"] for node in told["nodes"])
    os.kill(nodes["node1"], signal.SIGKILL)
    (job.folder / "go").touch()
    assert job.end() == 0


def test_a_signal_reaches_every_node(job: _Job) -> None:
    job.started()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 5
    assert marked(job.mark) == []


def test_nodes_do_not_outlive_who_started_them(job: _Job) -> None:
    job.started()
    job.process.kill()
    job.process.wait()
    wait_for(lambda: not marked(job.mark), 60, "the end of the nodes and their workers")


def test_nodes_that_were_all_killed_are_named(job: _Job) -> None:
    _, nodes = job.started()
    for pid in nodes.values():
        os.kill(pid, signal.SIGKILL)
    assert job.end() == 128 + signal.SIGKILL
    assert job.process.stderr is not None
    said = [json.loads(line) for line in job.process.stderr if line.startswith("{")]
    (ended,) = [event for event in said if event["event"] == "local.ended"]
    assert ended["reason"] == ", ".join(f"{name} was ended by SIGKILL" for name in nodes)


def test_one_of_the_nodes_says_how_the_job_has_ended(tmp_path: Path) -> None:
    """None of them was in a round, so that it did not fail on one rather than on another."""
    (tmp_path / "train.py").touch()
    bounds = ("--min", "3", "--max", "3", "--join-timeout", "1")
    ended = elastic_run("--cold", "--local-nodes", "2", *bounds, "train.py", folder=tmp_path)
    assert ended.stderr.count("elastic-run: ") == 1, ended.stderr
    assert "of at least 3 nodes came together" in ended.stderr
