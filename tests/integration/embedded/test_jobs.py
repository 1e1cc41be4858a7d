"""Whole jobs without an etcd: what becomes of them when the node dies that hosts their store."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests import processes, zygote
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


PATIENCE = 60.0
# A worker without torch, which ends well as soon as there is a file "over". In arguments of workers
# a dollar is written as two.
_TRAINS = "echo $$$$ > {name}-$$ELASTIC_ROUND.pid; until test -e over; do sleep 0.1; done"


class Node:
    """One ``elastic-run`` whose worker is a command without torch.

    Args:
        folder: where its output goes, and where its worker looks for files.
        endpoint: ``host:port`` of the store.
        name: the node's name.
        *options: more options.
    """

    def __init__(self, folder: Path, endpoint: str, name: str, *options: str) -> None:
        self._folder, self.name = folder, name
        self._said = folder / f"{name}.err"
        self._mark = f"embedded-{secrets.token_hex(8)}"
        argv = [
            *(sys.executable, "-m", "elastic_runtime", "--cold", "--log-format", "json"),
            *("--rdzv-endpoint", f"c10d://{endpoint}", "--run-id", "job", "--node-name", name),
            *("--last-call", "0.2", *options),
            *("--no-python", "sh", "-c", _TRAINS.format(name=name)),
        ]
        environ = {**os.environ, processes.MARKER: self._mark}
        with self._said.open("wb") as said:
            self.process = zygote.start(
                argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder, env=environ
            )

    @property
    def story(self) -> str:
        """All that it has said."""
        return f"{self.name}: {self._said.read_text(errors='replace')}"

    def says(self, event: str, after: int = 0, **fields: Any) -> dict[str, Any]:
        """Waits for an event with these fields, of a round after that one."""

        def found() -> dict[str, Any] | None:
            text = self._said.read_text(errors="replace")
            lines = text[: text.rfind("\n") + 1].splitlines()
            told = [json.loads(line) for line in lines if line.startswith("{")]
            fits = [e for e in told if e["event"] == event and fields.items() <= e.items()]
            return next((e for e in fits if e.get("round", 1) > after), None)

        told = processes.wait_for(found, PATIENCE, f"{event} {fields}", lambda: self.story)
        assert told is not None
        return told

    def worker(self, number: int) -> int:
        """The process id of its worker in a round, as soon as there is one."""
        file = self._folder / f"{self.name}-{number}.pid"
        text = processes.wait_for(
            lambda: file.exists() and file.read_text().strip(),
            PATIENCE,
            "a worker",
            lambda: self.story,
        )
        return int(str(text))

    def ends(self) -> int:
        """Waits for its end; returns the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended in {PATIENCE} s:\n{self.story}") from None

    def close(self) -> None:
        """Kills it and its worker."""
        processes.end(self._mark)
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes of one job at an endpoint of this machine, and ends them with the test."""
    endpoint = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:

        def start_it(name: str, *options: str) -> Node:
            node = Node(tmp_path, endpoint, name, *options)
            stack.callback(node.close)
            return node

        yield start_it


@pytest.mark.users_start
@pytest.mark.golden("a job that hosts its store survives the host")
def test_the_death_of_the_host_ends_no_job(start: Callable[..., Node], tmp_path: Path) -> None:
    """Another node hosts the store; there a new node joins, and a fault is recovered."""
    sizes = ("--min", "2", "--max", "3")
    host = start("host", *sizes)
    host.says("job.waiting")  # nobody else is there, so it hosts
    others = [start(name, *sizes) for name in ("second", "third")]
    before = max(node.says("round.sealed", nodes=3)["round"] for node in (host, *others))
    for node in (host, *others):
        node.worker(before)
    host.process.send_signal(signal.SIGKILL)
    for node in others:
        node.says("store.found")
    left = [*others, start("joining", *sizes)]
    joined = max(node.says("round.sealed", after=before, nodes=3)["round"] for node in left)
    os.kill(left[0].worker(joined), signal.SIGKILL)
    mended = max(node.says("round.sealed", after=joined, nodes=3)["round"] for node in left)
    (tmp_path / "over").touch()
    assert [node.ends() for node in left] == [0, 0, 0]
    assert mended > joined > before
