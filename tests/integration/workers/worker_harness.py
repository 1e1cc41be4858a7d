"""A stand-in for the agent: starts real workers through a real fork server, and hears of them."""

from __future__ import annotations

import os
import queue
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerReady, WorkerExited
from elastic_runtime.agent.logs.log_directory import LogDirs
from elastic_runtime.agent.workers.roster import WorkerSpec, WorkerStarted
from elastic_runtime.agent.workers.worker_processes import WorkerEvent, WorkerProcesses
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig
from tests.processes import MARKER, end, marked, parent, wait_for

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 60.0

_E = TypeVar("_E", bound=WorkerEvent)
# The fixture that makes workers of a test's own.
Begin = Callable[..., Any]


class WorkerHarness:
    """One set of workers, their events and their output.

    Everything that it starts carries a mark of its own in its environment.
    """

    def __init__(self, directory: Path, entry: Entry, workers: int = 1, **settings: Any) -> None:
        self.directory = directory
        self.mark = f"workers-{uuid.uuid4().hex}"
        self.events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self.heard: list[WorkerEvent] = []
        self.stdout = directory / "console.out"
        self.stderr = directory / "console.err"
        self.config = replace(
            JobConfig(entry, Endpoint("c10d", ("127.0.0.1:1",)), "run"),
            workers=workers,
            **settings,
        )
        self.round = 0
        self._logs = LogDirs(self.config, str(directory / "private"))
        self._consoles = [os.open(p, os.O_CREAT | os.O_RDWR) for p in (self.stdout, self.stderr)]
        self.stdin = directory / "console.in"
        self._consoles.append(os.open(self.stdin, os.O_CREAT | os.O_RDONLY))
        self.workers = WorkerProcesses(
            self.config,
            self.events.put,
            stdout=self._consoles[0],
            stderr=self._consoles[1],
            stdin=self._consoles[2],
        )
        with self._marked():
            self.workers.start_server()

    def _marked(self) -> Any:
        return _Environment({MARKER: self.mark})

    def start(self, *local_ranks: int, **env: str) -> list[WorkerSpec]:
        """Starts workers in a new round."""
        self.round += 1
        specs = [
            WorkerSpec(
                local_rank=local_rank,
                global_rank=local_rank,
                round=self.round,
                env=self._environment(local_rank, env),
                worker_dir=self._logs.worker_dir(self.round, local_rank),
            )
            for local_rank in local_ranks or range(self.config.workers)
        ]
        for spec in specs:
            spec.env["TORCHELASTIC_ERROR_FILE"] = spec.worker_dir.error_file
        self.workers.start(specs)
        return specs

    def _environment(self, local_rank: int, env: dict[str, str]) -> dict[str, str]:
        here = {MARKER: self.mark, "RANK": str(local_rank), "LOCAL_RANK": str(local_rank)}
        return {**os.environ, **here, **env}

    def workers_environment(self) -> dict[str, str]:
        """What a worker of rank 0 has in its environment."""
        return self._environment(0, {})

    def wait(self, kind: type[_E]) -> _E:
        """The next event of a kind; those that come before it are only remembered."""
        while True:
            event = self.events.get(timeout=PATIENCE)
            self.heard.append(event)
            if isinstance(event, kind):
                return event

    def ready(self) -> ForkServerReady:
        """Waits until the fork server is ready."""
        return self.wait(ForkServerReady)

    def started(self) -> int:
        """Waits for a worker to be started; its process."""
        return self.wait(WorkerStarted).pid

    def exited(self, count: int = 1) -> list[WorkerExited]:
        """Waits for so many workers to have ended; in the order of their ranks."""
        events = [self.wait(WorkerExited) for _ in range(count)]
        return sorted(events, key=lambda event: event.local_rank)

    def run(self, *local_ranks: int, **env: str) -> list[WorkerExited]:
        """Starts workers and waits for their ends; forgets the output so far."""
        for console in self._consoles[:2]:
            os.ftruncate(console, 0)
            os.lseek(console, 0, os.SEEK_SET)
        return self.exited(len(self.start(*local_ranks, **env)))

    def prints(self, text: str) -> None:
        """Waits until a worker has printed this."""
        wait_for(
            lambda: text in self.stdout.read_text(), PATIENCE, f"{text!r} on stdout", self.story
        )

    def server(self) -> int:
        """The fork server's process."""
        (server,) = [pid for pid in self.all() if parent(pid) == os.getpid()]
        return server

    def all(self) -> list[int]:
        """All processes that came of this: the server, workers, and theirs."""
        return marked(self.mark)

    def only_server_left(self) -> None:
        """Waits until workers and all that they started are gone."""
        server = self.server()
        wait_for(lambda: self.all() == [server], 20, "the end of all but the server", self.story)

    def story(self) -> str:
        """What there is to say if something fails."""
        output = self.stdout.read_text(errors="replace")[-2000:]
        errors = self.stderr.read_text(errors="replace")[-4000:]
        return f"events: {self.heard}\nstdout:\n{output}\nstderr:\n{errors}"

    def close(self) -> None:
        """Ends everything; a process that is left is an error."""
        self.workers.close()
        for console in self._consoles:
            os.close(console)
        left = self.all()
        end(self.mark)
        assert not left, f"left behind: {left}"


class _Environment:
    """Variables that are set for a moment."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def __exit__(self, *exc: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class ScriptHarness(WorkerHarness):
    """Workers that run one script file, which each test writes anew: one fork server for many."""

    def __init__(self, directory: Path, *args: str, **settings: Any) -> None:
        self.script = directory / "script.py"
        self.script.write_text("import numpy\nimport torch\nimport torch.utils.data\n")
        super().__init__(directory, Entry(SCRIPT, str(self.script), args), **settings)

    def write(self, source: str) -> None:
        """Says what the next workers run."""
        self.script.write_text(source)
