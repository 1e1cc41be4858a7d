"""A job on some machines, from their list to its end."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.hosts import host_source
from elastic_runtime.cli.hosts.host_plan import AGAIN, PlanState
from elastic_runtime.cli.hosts.host_source import HostSource
from elastic_runtime.cli.hosts.run_on_hosts import HostRunner
from elastic_runtime.errors import EXIT_LEFT, StoreUnreachable
from tests.processes import wait_for
from tests.unit.cli.hosts.far_machines import FarMachines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 60.0


class Run:
    """A job that a thread does something to."""

    def __init__(self, folder: Path) -> None:
        self.far = FarMachines(folder)
        self.listing = folder / "hosts"
        self.grown: list[int] = []
        self.outcome: int | None = None
        self.store_is_gone = False
        self.printed = folder / "stdout", folder / "stderr"

    def list(self, *hosts: str) -> None:
        self.listing.write_text("".join(f"{host}\n" for host in hosts))

    def grow(self, most: int) -> None:
        self.grown.append(most)
        if len(self.grown) == 1:
            raise StoreUnreachable("no node has begun yet")

    def wait(self, *texts: str) -> None:
        def said() -> bool:
            return all(text in self._seen() for text in texts)

        wait_for(said, PATIENCE, str(texts), self._seen)

    def _seen(self) -> str:
        return "".join(path.read_text() for path in self.printed)

    def play(self, then: Callable[[], None]) -> int:
        """Runs the job to its end."""
        source = HostSource(str(self.listing), is_program=False)
        with self._into_file():
            runner = HostRunner(
                source,
                self.far.ssh,
                self.far.order,
                PlanState(600.0, most=1),
                lambda: self.outcome,
                lambda: self.store_is_gone,
                self.grow,
                only_events=False,
            )
            other = threading.Thread(target=then, daemon=True)
            other.start()
            code = runner.run(source.look())
            other.join()
        return code

    @contextmanager
    def _into_file(self) -> Iterator[None]:
        """Not into pytest's: what is printed while that is read is lost."""
        before = os.dup(1), os.dup(2)
        out, error = (path.open("a", buffering=1) for path in self.printed)
        with out, error, redirect_stderr(error):
            for number, file in enumerate((out, error), 1):
                os.dup2(file.fileno(), number)
            try:
                yield
            finally:
                for number, descriptor in enumerate(before, 1):
                    os.dup2(descriptor, number)
                    os.close(descriptor)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(host_source, "INTERVAL", 0.02)
    return Run(tmp_path)


def test_a_job_is_over_when_its_nodes_say_so(run: Run) -> None:
    def then() -> None:
        run.wait("[n0] n0 trains --workers 4", "[n1] n1 trains --workers 0")
        run.outcome = 1
        run.far.end(1)

    run.list("n0:4", "n1")
    assert run.play(then) == 1


def test_a_node_that_ends_as_a_job_does_ends_no_job(run: Run) -> None:
    """It has waited for the others for too long, and they train."""

    def then() -> None:
        run.wait("n0 trains")
        run.far.end(3)
        run.wait("n0: its node has ended (exit code 3); it is started again in 1 s")
        run.outcome = 0
        run.far.end(0)

    run.list("n0")
    assert run.play(then) == 0


def test_a_store_that_is_gone_with_its_nodes(run: Run) -> None:
    def then() -> None:
        run.wait("n0 trains", "n1 trains")
        run.store_is_gone = True
        run.far.end(4)
        run.wait("no node is left, and the store of the job is gone with them")

    run.list("n0", "n1")
    assert run.play(then) == AGAIN


def test_machines_that_appear_and_vanish(run: Run) -> None:
    def then() -> None:
        run.wait("n0 trains")
        run.list("n0", "n1")
        run.wait("n1 is listed: a node is started there", "n1 trains")
        run.list("n1")
        run.wait("n0 is listed no longer", "[n0] n0 leaves", "n0 has left")
        wait_for(lambda: len(run.grown) == 2, PATIENCE, "a second try")
        run.outcome = 0
        run.far.end(0)

    run.list("n0")
    assert run.play(then) == 0
    assert run.grown == [2, 2]


def test_a_signal_has_all_leave(run: Run) -> None:
    def then() -> None:
        run.wait("n0 trains", "gone: ssh cannot reach it")
        os.kill(os.getpid(), signal.SIGTERM)

    run.list("n0", "gone")
    assert run.play(then) == EXIT_LEFT
