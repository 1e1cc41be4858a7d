"""Real ``elastic-run`` processes that are hurt on purpose, whatever they train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests import processes, zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

_PATIENCE = 60.0


@dataclass(frozen=True)
class Node:
    """One ``elastic-run`` process and all that it started."""

    name: str
    mark: str
    agent: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> list[int]:
        """All its living processes."""
        return processes.marked(self.mark)

    def events(self) -> list[dict[str, Any]]:
        """The events it has logged so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def alive(self) -> bool:
        """Its agent runs (perhaps stopped)."""
        return self.agent.poll() is None


class Fleet:
    """The nodes of one job. Use it in a ``with`` statement: at its end nothing of it is left.

    Args:
        directory: for logs.
        endpoint: as for ``--rdzv-endpoint``.
        script: the script and its arguments.
        bounds: fewest and most nodes.
        options: further options of ``elastic-run``.

    Attributes:
        nodes: all that were ever started.
        job: as options of ``elasticctl``: which job it is.
        environ: variables that its processes get beside those of this one.
    """

    def __init__(
        self,
        directory: Path,
        endpoint: str,
        script: Sequence[str],
        bounds: tuple[int, int],
        options: tuple[str, ...],
    ) -> None:
        self.nodes: list[Node] = []
        self.job = ("--rdzv-endpoint", endpoint, "--run-id", f"chaos-{uuid.uuid4().hex[:8]}")
        self.environ = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
        self._directory = directory
        self._mark = f"chaos-{uuid.uuid4().hex}"
        least, most = (str(bound) for bound in bounds)
        self._script = script[0]
        self._command = [
            *(sys.executable, "-m", "elastic_runtime", "--min", least, "--max", most),
            *self.job,
            *("--log-dir", str(directory / "logs"), "--redirects", "3"),
            *(*options, *script),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self._show_stacks()
        processes.end(self._mark)
        for node in self.nodes:
            node.agent.wait()

    # What is done to it

    def start(self, count: int = 1) -> list[Node]:
        """Starts nodes, and returns at once."""
        return [self._start() for _ in range(count)]

    def _start(self) -> Node:
        name = f"n{len(self.nodes)}"
        mark = f"{self._mark}/{name}"
        log = self._directory / f"{name}.log"
        with log.open("wb") as out:
            agent = zygote.start(
                [*self.place(name), *self._command[:3], "--node-name", name, *self._command[3:]],
                env={**os.environ, **self.environ, processes.MARKER: mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes.append(Node(name, mark, agent, log))
        return self.nodes[-1]

    def place(self, name: str) -> Sequence[str]:
        """What a node's command begins with, to run it somewhere else than right here."""
        return ()

    def kill_agent(self, node: Node) -> None:
        """SIGKILL to the agent alone."""
        node.agent.kill()

    def kill_node(self, node: Node) -> None:
        """SIGKILL to all of the node's processes, as when its machine dies."""
        processes.send(node.processes(), signal.SIGKILL)

    def stop_node(self, node: Node) -> None:
        """SIGSTOP to all of them, as when its machine no longer answers."""
        processes.send(node.processes(), signal.SIGSTOP)

    def ask_to_leave(self, node: Node) -> None:
        """SIGTERM to the agent."""
        node.agent.terminate()

    # What is seen of it

    def wait(self, happened: Callable[[], Any], what: str, patience: float = _PATIENCE) -> Any:
        """Waits until something is true of the job; else fails with the ends of all logs."""
        return processes.wait_for(happened, patience, what, self.story, pause=0.05)

    def wait_for_end(self, patience: float) -> None:
        """Waits until all nodes have ended, and nothing of them is left."""
        self.wait(lambda: not any(node.alive for node in self.nodes), "the end", patience)
        self.wait(lambda: not processes.marked(self._mark), f"no process left{self._left()}", 10.0)

    def exit_codes(self) -> set[int]:
        """The exit codes of all nodes that have ended."""
        return {node.agent.returncode for node in self.nodes if not node.alive}

    def story(self) -> str:
        """The ends of all logs, for messages."""
        ends = []
        for node in self.nodes:
            code = node.agent.poll()
            lines = node.log.read_text(errors="replace").splitlines()
            text = "\n".join(line for line in lines if '"checkpoint.saved"' not in line)
            ends.append(f"--- {node.name} (exit code {code}) ---\n{text[-3000:]}")
        return "\n".join(ends)

    def _show_stacks(self) -> None:
        """Prints where all workers are."""
        began = time.time()
        processes.show_workers(self._mark, self._script)
        for log in sorted((self._directory / "logs").glob("**/stderr.log")):
            if log.stat().st_mtime >= began:
                print(f"--- {log} ---\n{log.read_text(errors='replace')[-6000:]}")

    def _left(self) -> str:
        return "".join(f"\n{pid} {processes.command(pid)}" for pid in processes.marked(self._mark))


class Lines:
    """The whole lines of a file that another process appends to, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[bytes]:
        """Those that were not there when it was called last."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.splitlines()
