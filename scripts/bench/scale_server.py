"""The rounds of ``scale.py`` over a store in a process of its own, and nodes in a few others."""

from __future__ import annotations

import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elastic_runtime.config import LOOPBACK, Endpoint
from elastic_runtime.endpoint import C10D
from elastic_runtime.rendezvous.core.membership_events import Join
from elastic_runtime.rendezvous.stores.open_store import open_store
from scripts.bench.scale_nodes import LIMIT, TTL, Counted, Node, Round, Traffic
from tests.etcd_server import EtcdProcess
from tests.integration.embedded.hosting import HostProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONNECT = 30.0
_ELDERS = 2  # who lead have a process to themselves, as every agent has


def share(backend: str, server: str, run_id: str, first: int, count: int, total: int) -> None:
    """One process of nodes; obeys the words on stdin, and says what happens."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    traffic, lock = Traffic(), threading.Lock()
    there: dict[int, int] = {}
    nodes: dict[int, Node] = {}

    def say(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    def sealed(node: Node, number: int, size: int) -> None:
        with lock:
            there[number] = there.get(number, 0) + 1
            alive = sum(not one.dead for one in nodes.values())
            if there[number] == alive:
                say(round=number, at=time.monotonic(), size=size)

    endpoint = Endpoint(backend, (server,), prefix="bench", hosted_here=backend == C10D)
    for number in range(first, first + count):
        store = Counted(open_store(endpoint, run_id, TTL, _CONNECT), traffic)
        dies = number in (0, total - 1)
        nodes[number] = Node(number, store, total, sealed, dies)  # type: ignore[arg-type]
    threading.Thread(target=_beat, args=(nodes,), daemon=True).start()
    say(ready=True)
    for line in sys.stdin:
        match line.split():
            case ["first"]:  # the oldest leads
                nodes[0].say(Join(1))
                while nodes[0].state.own.stored is None:
                    time.sleep(0.001)
                say(registered=True)
            case ["go"]:
                for node in nodes.values():
                    if node.number:
                        node.say(Join(1))
            case ["kill", number]:
                nodes[int(number)].die()
                nodes[int(number)]._inbox.put(_Frozen())  # type: ignore[arg-type]
            case ["notice", *few]:
                for number, node in nodes.items():
                    if not node.dead and (not few or str(number) in few):
                        node.notices()
            case ["cost"]:
                costs = [[one.cpu, one.state.shown.wide, one.dead] for one in nodes.values()]
                used = _cpu(os.getpid())
                say(written=traffic.written, received=traffic.received, cpu=costs, used=used)
            case _:
                break
    os._exit(0)


class _Frozen:
    """What stops a participant dead: its thread never comes back from looking at it."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        threading.Event().wait()


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used; see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _beat(nodes: dict[int, Node]) -> None:
    while True:
        for node in nodes.values():
            node.beat()
        time.sleep(TTL / 10)


@dataclass
class Share:
    """The parent's end of one process of nodes."""

    process: subprocess.Popen[str]
    lines: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def tell(self, word: str) -> None:
        """Says a word to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self, key: str) -> dict[str, Any]:
        """The next line with this key in it."""
        while key not in (line := self.lines.get(timeout=LIMIT)):
            pass
        return line


@dataclass(frozen=True)
class _Server:
    """A store in a process of its own.

    Attributes:
        backend: how endpoints call it.
        where: ``host:port``.
        pid: of the process.
    """

    backend: str
    where: str
    pid: int


class _Job:
    """A job over etcd: its processes, and what each round of it costs.

    Args:
        server: where its nodes meet.
        total: its nodes.
        processes: over how many the nodes are spread that do not lead.
        stack: ends them.
    """

    def __init__(self, server: _Server, total: int, processes: int, stack: ExitStack) -> None:
        self.rounds: list[Round] = []
        self.shares: list[Share] = []
        self._server = server
        run_id, first = uuid.uuid4().hex, 0
        others = max(0, total - _ELDERS)
        shared = [others // processes + (one < others % processes) for one in range(processes)]
        for count in (total - others, *shared):
            arguments = [server.backend, server.where, run_id, str(first), str(count), str(total)]
            process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            self.shares.append(Share(process))
            first += count
        for one in self.shares:
            one.hear("ready")

    def start(self) -> None:
        """Has all nodes join, the oldest one first."""
        self.shares[0].tell("first")
        self.shares[0].hear("registered")
        for one in self.shares:
            one.tell("go")

    def kill(self, number: int, notice: str) -> None:
        """Has a node die, and others notice it: those with these numbers; "": all."""
        self.shares[0 if number == 0 else -1].tell(f"kill {number}")
        for one in self.shares:
            one.tell(f"notice {notice}")

    def measure(self, what: str, left: int, begin: Callable[[], None]) -> None:
        """Notes what a round has cost.

        Args:
            what: names it.
            left: nodes that it has.
            begin: what it begins with.
        """
        before, store_before, begun = self._costs(), _cpu(self._server.pid), time.monotonic()
        begin()
        ends = [one.hear("round") for one in self.shares]
        after, store_after = self._costs(), _cpu(self._server.pid)
        assert {end["size"] for end in ends} == {left}, ends
        cpus = [
            (new[0] - old[0], new[1])
            for one, two in zip(before, after, strict=True)
            for old, new in zip(one["cpu"], two["cpu"], strict=True)
        ]

        def more(key: str) -> Any:
            return sum(a[key] - b[key] for a, b in zip(after, before, strict=True))

        self.rounds.append(
            Round(
                what,
                left,
                max(end["at"] for end in ends) - begun,
                more("written"),
                more("received"),
                max((one for one, wide in cpus if wide), default=0.0),
                sum(one for one, wide in cpus if not wide) / len(cpus),
                more("used"),
                store_after - store_before,
            )
        )

    def _costs(self) -> list[dict[str, Any]]:
        for one in self.shares:
            one.tell("cost")
        return [one.hear("cpu") for one in self.shares]


@contextmanager
def _serving(store: str) -> Iterator[_Server]:
    """A store in a process of its own, while the block runs."""
    if store == "etcd":
        etcd = EtcdProcess()
        try:
            yield _Server(store, etcd.endpoint, etcd.pid)
        finally:
            etcd.close()
        return
    host = HostProcess()
    try:
        yield _Server(C10D, f"{LOOPBACK}:{host.port}", host.pid)
    finally:
        host.kill()


def over_server(store: str, total: int, processes: int) -> list[Round]:
    """The rounds of a job of this size, over a store in another process."""
    with ExitStack() as stack:
        server = stack.enter_context(_serving(store))
        job, last = _Job(server, total, processes, stack), total - 1
        job.measure("start", total, job.start)
        job.measure("a node dies", last, lambda: job.kill(last, f"{last - 1} {last - 2}"))
        job.measure("the leader dies", last - 1, lambda: job.kill(0, ""))
        return job.rounds


if __name__ == "__main__":
    backend, where, run_id, first, count, total = sys.argv[1:]
    share(backend, where, run_id, int(first), int(count), int(total))
