"""Plain torchrun, with our rendezvous behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.conformance import RESOLVER
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.etcd_server import EtcdServer

PATIENCE = 60.0

# Says who is in the world; goes on when a file appears, fails when another one does.
SCRIPT = textwrap.dedent(
    """
    import os, pathlib, sys, time
    import torch.distributed as dist
    dist.init_process_group("gloo")
    here, rank = pathlib.Path(sys.argv[1]), dist.get_rank()
    dist.barrier()
    with open(here / "said", "a") as said:
        said.write(f"{rank} of {dist.get_world_size()} by {os.environ['NODE']}\\n")
    while not (here / "finish").exists():
        if (here / f"fail{rank}").exists():
            (here / f"fail{rank}").unlink()
            sys.exit("told to fail")
        time.sleep(0.02)
    """
)


class Agents:
    """torchrun agents of one job on this machine."""

    def __init__(self, backend: str, endpoint: str, here: Path) -> None:
        self._backend, self._endpoint, self._here = backend, endpoint, here
        self._mark = uuid.uuid4().hex
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        (here / "script.py").write_text(SCRIPT)

    def start(self, name: str, nodes: str = "1:2", restarts: int = 3) -> None:
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={nodes}", "--nproc-per-node=1", f"--max-restarts={restarts}"),
            *(f"--rdzv-backend={self._backend}", f"--rdzv-endpoint={self._endpoint}"),
            f"--rdzv-id={self._mark}",
            "--rdzv-conf=lease_ttl=2,last_call_timeout=1,batch=0.2",
            *(str(self._here / "script.py"), str(self._here)),
        ]
        environment = os.environ | RESOLVER | {processes.MARKER: f"{self._mark}/{name}"}
        environment |= {"NODE": name, "OMP_NUM_THREADS": "1"}
        with open(self._here / f"{name}.log", "wb") as log:
            self._agents[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def hears(self, *lines: str) -> None:
        """Waits until all these were said since the last time."""

        def said() -> bool:
            path = self._here / "said"
            return path.exists() and set(lines) <= set(path.read_text().splitlines())

        processes.wait_for(said, PATIENCE, str(lines), self.story)
        (self._here / "said").unlink()

    def rank_of(self, name: str, world: int) -> int:
        """Waits until a node has said which rank it has in a world of this size."""
        path = self._here / "said"

        def said() -> list[str]:
            lines = path.read_text().splitlines() if path.exists() else []
            return [line for line in lines if line.endswith(f" of {world} by {name}")]

        return int(processes.wait_for(said, PATIENCE, name, self.story)[0].split()[0])

    def forget(self, word: str) -> None:
        (self._here / word).unlink()

    def tell(self, word: str) -> None:
        (self._here / word).touch()

    def kill(self, name: str) -> None:
        """The whole node dies at once."""
        processes.end(f"{self._mark}/{name}")
        self._agents[name].wait()

    def stop(self, name: str) -> None:
        self._agents[name].send_signal(signal.SIGTERM)

    def ends(self, name: str) -> int:
        try:
            return self._agents[name].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise processes.Overdue(f"{name} still runs\n{self.story()}") from None

    def story(self) -> str:
        logs = sorted(self._here.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-6000:]}" for log in logs)

    def close(self) -> None:
        processes.end(self._mark)
        for agent in self._agents.values():
            agent.wait()


@pytest.fixture
def agents_on(tmp_path: Path) -> Iterator[Callable[[str, str], Agents]]:
    made: list[Agents] = []

    def make(backend: str, endpoint: str) -> Agents:
        made.append(Agents(backend, endpoint, tmp_path))
        return made[-1]

    yield make
    for agents in made:
        agents.close()


MakeAgents = Callable[[str, str], Agents]


@pytest.mark.etcd
def test_a_lost_node_and_a_new_one_are_noticed(agents_on: MakeAgents, etcd: EtcdServer) -> None:
    agents = agents_on("etcd-v3", etcd.endpoint)
    agents.start("a")
    agents.hears("0 of 1 by a")  # after the last call
    agents.start("b")
    agents.hears("0 of 2 by a", "1 of 2 by b")
    agents.kill("b")
    agents.hears("0 of 1 by a")
    agents.start("c")
    agents.hears("0 of 2 by a", "1 of 2 by c")
    agents.tell("fail1")
    agents.hears("0 of 2 by a", "1 of 2 by c")
    agents.tell("finish")
    assert agents.ends("a") == 0, agents.story()
    assert agents.ends("c") == 0, agents.story()
    # The same run id again: an old end is no obstacle.
    agents.forget("finish")
    agents.start("d", nodes="1")
    agents.hears("0 of 1 by d")
    agents.stop("d")
    assert agents.ends("d") != 0


@pytest.mark.golden("our rendezvous under plain torchrun")
def test_a_node_that_gives_up_ends_the_job_for_all(agents_on: MakeAgents) -> None:
    agents = agents_on("elastic-c10d", f"127.0.0.1:{free_port()}")
    agents.start("a", nodes="2")
    agents.start("b", nodes="2", restarts=0)
    rank = agents.rank_of("b", 2)
    agents.tell(f"fail{rank}")
    assert agents.ends("b") == 1, agents.story()
    assert agents.ends("a") == 1, agents.story()
