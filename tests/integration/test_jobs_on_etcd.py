"""Whole jobs on an etcd: what they leave in it, and what becomes of them when it is of no use."""

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

from elastic_runtime.errors import EXIT_STORE_UNREACHABLE
from tests import zygote
from tests.etcd_server import etcdctl
from tests.integration.etcd.proxy import Proxy
from tests.processes import state, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdServer

pytestmark = [pytest.mark.etcd]

PATIENCE = 60.0


class Node:
    """One ``elastic-run`` whose worker is a command without torch.

    Args:
        folder: where its output goes.
        where: "host:port" of etcd.
        run_id: the run.
        name: the node's name.
        command: what the worker is, for ``sh -c``.
        options: further options.
    """

    def __init__(
        self, folder: Path, where: str, run_id: str, name: str, command: str, *options: str
    ) -> None:
        self._said = folder / f"{name}-{secrets.token_hex(4)}.err"
        argv = [
            *(sys.executable, "-m", "elastic_runtime", "--cold"),
            *("--rdzv-endpoint", f"etcd://{where}/test", "--run-id", run_id, "--node-name", name),
            *("--lease-ttl", "2", "--last-call", "0.2", *options),
            *("--no-python", "sh", "-c", command),
        ]
        with self._said.open("wb") as said:
            self.process = zygote.start(
                argv, stdout=said, stderr=said, cwd=folder, env={**os.environ}
            )

    @property
    def story(self) -> str:
        """All that it has said."""
        return self._said.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its events of this name so far."""
        lines = [json.loads(line) for line in self.story.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def says(self, name: str, patience: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """Waits for an event with these fields."""

        def found() -> dict[str, Any] | None:
            fits = [e for e in self.events(name) if fields.items() <= e.items()]
            return fits[0] if fits else None

        event = wait_for(found, patience, f"{name} {fields}", lambda: self.story)
        assert event is not None
        return event

    def ends(self, patience: float = PATIENCE) -> int:
        """Waits for its end; returns the exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended in {patience} s:\n{self.story}") from None

    def close(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts nodes, and ends them with the test."""
    with ExitStack() as stack:

        def start_it(*arguments: Any) -> Node:
            node = Node(tmp_path, *arguments)
            stack.callback(node.close)
            return node

        yield start_it


def test_nodes_with_ever_new_names_leave_no_more_events_than_one(
    etcd: EtcdServer, start: Any
) -> None:
    run_id = secrets.token_hex(8)
    for number in range(3):
        assert start(etcd.endpoint, run_id, f"pod-{secrets.token_hex(3)}", "exit 0").ends() == 0
        kept = etcdctl(etcd.endpoint, "get", "--prefix", "--keys-only", f"/test/{run_id}/events/")
        keys = kept.split()
        if number == 0:
            first = keys
    assert keys == first != []


# ---------------------------------------------------------------- a store that never comes back

# In arguments of workers a dollar is written as two.
_TRAINS = "echo $$$$ > worker.pid; exec sleep 1000"


def _worker(folder: Path) -> int:
    file = folder / "worker.pid"
    text = wait_for(lambda: file.exists() and file.read_text().strip(), PATIENCE, "a worker")
    return int(str(text))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("then", ["a fault", "nothing"])
def test_who_waits_for_a_store_that_is_gone_ends(
    new_etcd: NewEtcd, start: Any, tmp_path: Path, then: str
) -> None:
    """After the loss either a worker is killed, or all goes well until the fence."""
    server = new_etcd()
    times = ("--join-timeout", "4", "--fence-timeout", "12")
    node = start(server.endpoint, "run", "a", _TRAINS, *times)
    worker = _worker(tmp_path)
    server.kill()
    node.says("store.lost")
    if then == "a fault":
        os.kill(worker, signal.SIGKILL)
    else:
        node.says("node.excluded")
        wait_for(lambda: not state(worker), PATIENCE, "the end of the worker")
    assert node.ends() == EXIT_STORE_UNREACHABLE
    assert "(--join-timeout)" in node.story


# ---------------------------------------------------------------- a store that comes back empty


@pytest.mark.timeout(400)
def test_a_newcomer_that_was_told_of_the_job_leaves_an_emptied_store_to_its_members(
    new_etcd: NewEtcd, start: Any, tmp_path: Path
) -> None:
    server = new_etcd()
    with Proxy(server.endpoint) as network:
        old = start(network.endpoint, "run", "a", _TRAINS, "--max", "2")
        worker = _worker(tmp_path)
        network.cut()
        old.says("store.lost")
        server.restart(wipe=True)
        new = start(server.endpoint, "run", "b", _TRAINS, "--max", "2", "--resuming")
        wait_for(
            lambda: [e for e in new.events("job.waiting") if "has run before" in e["reason"]],
            PATIENCE,
            "that it waits",
            lambda: new.story,
        )
        assert state(worker)
        network.heal()
        # The members give their round back; the newcomer is in the next one.
        old.says("store.forgot")
        assert new.says("round.sealed")["round"] == 2
        assert old.says("round.sealed", round=2)["nodes"] == 2
        assert not old.events("node.excluded")
