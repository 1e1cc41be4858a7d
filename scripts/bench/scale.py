#!/usr/bin/env python3
"""What a rendezvous of thousands of nodes costs: seconds, bytes and processor time.

The participants and all that they decide are the real ones. A job of n nodes comes together; then
the last one dies, two neighbours notice, all leave the round, and the survivors form the next one;
then the oldest node, which leads, dies, and all notice it. Each round makes a step, so no pause
follows for want of progress. Two stores:

- ``memory``: the store in this process, and one thread that plays all nodes in turn. So the seconds
  are the processor time of all nodes together, and show what grows faster than n. A probe of the
  dead node is answered by the bench.
- ``etcd``: a real etcd and real threads, spread over a few processes; who leads, and who leads
  next, are in one of their own.

    scripts/bench/scale.py --nodes 1000 4000 10000 --stores memory etcd --most-etcd 1000

Bytes are those of keys and values, as nodes write and receive them. Only the two nodes that die
have a port for probes, which nobody answers while they live, and which refuses afterwards.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import queue
import resource
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elastic_runtime.config import Endpoint, Timeouts
from elastic_runtime.protocol.records import KILLED, PLANNED, FaultReport
from elastic_runtime.rendezvous.core.events import REFUSED, SILENT, Join, LeftRound
from elastic_runtime.rendezvous.core.notices import Notice, Sealed, Switch
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.probe import Prober
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    StoreEntry,
    StoreEvent,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from tests.etcd_server import EtcdProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.rendezvous.store_contract import Listener, Store

_TTL = 60.0  # so that a death is found by a probe, and not by the end of a lease
_FOR_EVER = 1e6  # where one thread plays all nodes, none can say in time that it lives
_LIMIT = 300.0
_HERE = "127.0.0.1"
_ELDERS = 2  # who lead have a process to themselves, as every agent has


@dataclass
class Traffic:
    """Bytes of keys and values."""

    written: int = 0
    received: int = 0


class Counted:
    """A store that counts what goes through it; the same protocol as the store itself."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store, self._traffic = store, traffic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def start(self, own_key: str, listener: Listener) -> None:
        def counted(event: StoreEvent) -> None:
            if isinstance(event, StoreSnapshot | Changed):
                self._count(event.entries if isinstance(event, StoreSnapshot) else event.puts)
            listener(event)

        self._store.start(own_key, counted)

    def apply(self, transaction: Transaction) -> bool:
        self._traffic.written += sum(len(p.key) + len(p.value) for p in transaction.puts)
        self._traffic.written += sum(map(len, transaction.deletes))
        return self._store.apply(transaction)

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        entries = self._store.read(prefix)
        self._count(entries)
        return entries

    def _count(self, entries: Sequence[StoreEntry]) -> None:
        self._traffic.received += sum(len(e.key) + len(e.value) for e in entries)


class Told(Prober):
    """Answers probes as the network would, without one.

    Args:
        told: gets the answers.
        dead: whether who had this port has died.
    """

    def __init__(self, told: Callable[[str, str], None], dead: Callable[[int], bool]) -> None:
        self._metadata_bytes, self._dead = told, dead

    def probe(self, node: str, address: str, port: int, secret: str) -> None:
        self._metadata_bytes(node, REFUSED if self._dead(port) else SILENT)

    def close(self) -> None: ...


class Node(Participant):
    """A participant, and an agent that does at once what it is told to.

    Args:
        number: names it, and says in which order nodes die.
        store: where it meets the others.
        total: nodes of the job.
        sealed: called with the round's number and size when this node is in a new one.
        dies: it will die, and can be probed.
        stage: plays it; None: it has a thread.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        total: int,
        sealed: Callable[[Node, int, int], None],
        dies: bool,
        stage: Stage | None = None,
    ) -> None:
        policy = Policy(max_nodes=total, entry="bench", timeouts=Timeouts(last_call=_LIMIT))
        self.listener = socket.create_server((_HERE, 0)) if dies else None
        self.port = self.listener.getsockname()[1] if self.listener else 0
        identity = NodeIdentity(f"node-{number:05d}", _HERE, 8, probe_port=self.port, life=1)
        inbox = _Inbox(self, stage) if stage else None
        prober = Told(self._probed, stage.is_dead) if stage else None
        super().__init__(store, policy, identity, self._hear, inbox=inbox, prober=prober)
        self.number, self.dead, self.cpu = number, False, 0.0
        self.round = 0
        self._sealed_here = sealed

    def turn(self, events: Any) -> float:
        begun = time.thread_time()
        wake = super().turn(events)
        self.cpu += time.thread_time() - begun
        return wake

    def _hear(self, notice: Notice) -> None:
        if isinstance(notice, Sealed):
            self.round = notice.round.number
            self._sealed_here(self, self.round, notice.round.size)
        elif isinstance(notice, Switch):
            fault = FaultReport(notice.round, PLANNED, notice.reason)
            self.say(LeftRound(notice.round, fault, 1))

    def die(self) -> None:
        """Nothing of it moves any more, and its port refuses."""
        self.dead = True
        if self.listener is not None:
            self.listener.close()

    def notices(self) -> None:
        """A worker of this node has lost a peer."""
        why = FaultReport(self.round, KILLED, "a peer is gone", step=self.round, consequence=True)
        self.say(LeftRound(self.round, why, 1))


@dataclass
class Round:
    """What one round has cost; ``seconds`` from the fault, or the start, to its last member.

    ``leader_cpu`` and ``member_cpu`` are those of their own threads; ``nodes_cpu`` is all that the
    processes of nodes have used, with what they share to speak to etcd.
    """

    what: str
    nodes: int
    seconds: float
    written: int
    received: int
    leader_cpu: float
    member_cpu: float
    nodes_cpu: float = 0.0
    etcd_cpu: float = 0.0


# ---------------------------------------------------------------- all nodes in one thread


class _Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
    """Says when there is something in it."""

    def __init__(self, node: Node, stage: Stage) -> None:
        super().__init__()
        self._node, self._stage = node, stage

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._stage.push(self._node)


class Stage:
    """Plays nodes in turn, in one thread."""

    def __init__(self, total: int) -> None:
        self.traffic = Traffic()
        self.nodes: list[Node] = []
        self.there: dict[int, int] = {}
        server = MemoryServer()
        self._ready: deque[Node] = deque()
        self._queued: set[int] = set()
        self._wakes: list[tuple[float, int]] = []
        self._due: dict[int, float] = {}
        for number in range(total):
            store = Counted(MemoryStore(server, _FOR_EVER), self.traffic)
            dies = number in (0, total - 1)
            node = Node(number, store, total, self._sealed, dies, self)  # type: ignore[arg-type]
            self.nodes.append(node)

    def is_dead(self, port: int) -> bool:
        """Whether who had this port has died."""
        return any(node.dead for node in (self.nodes[0], self.nodes[-1]) if node.port == port)

    def push(self, node: Node) -> None:
        """This node has something to do."""
        if node.number not in self._queued:
            self._queued.add(node.number)
            self._ready.append(node)

    def _sealed(self, node: Node, number: int, size: int) -> None:
        self.there[number] = self.there.get(number, 0) + 1

    def play(self, until: Callable[[], bool]) -> None:
        """Lets things happen."""
        limit = time.monotonic() + _LIMIT
        while not until():
            now = time.monotonic()
            assert now < limit, f"nothing came of it in {_LIMIT:g} s: {self.there}"
            while self._wakes and self._wakes[0][0] <= now:
                moment, number = heapq.heappop(self._wakes)
                if self._due.get(number) == moment:
                    self.push(self.nodes[number])
            if not self._ready:
                time.sleep(max(0.0, min(0.01, self._wakes[0][0] - now if self._wakes else 0.01)))
                continue
            node = self._ready.popleft()
            self._queued.discard(node.number)
            if node.dead:
                continue
            events = []
            while not node._inbox.empty():
                events.append(node._inbox.get_nowait())
            self._due[node.number] = wake = node.turn(events)
            heapq.heappush(self._wakes, (wake, node.number))


def in_memory(total: int) -> list[Round]:
    """The rounds of a job of this size, all in this thread."""
    stage = Stage(total)
    rounds: list[Round] = []

    def measured(what: str, left: int, number: int, begin: Callable[[], None]) -> None:
        before = Traffic(stage.traffic.written, stage.traffic.received)
        cpu = {node.number: node.cpu for node in stage.nodes}
        begun = time.monotonic()
        begin()
        stage.play(lambda: stage.there.get(number, 0) >= left)
        spent = [(node.cpu - cpu[node.number], node.state.shown.wide) for node in stage.nodes]
        rounds.append(
            Round(
                what,
                left,
                time.monotonic() - begun,
                stage.traffic.written - before.written,
                stage.traffic.received - before.received,
                max((one for one, wide in spent if wide), default=0.0),
                sum(one for one, wide in spent if not wide) / len(spent),
            )
        )

    def kill(node: Node, notice: int) -> None:
        node.die()
        for neighbour in [one for one in stage.nodes if not one.dead][-notice:]:
            neighbour.notices()

    measured("start", total, 1, lambda: [node.say(Join(1)) for node in stage.nodes] and None)
    measured("a node dies", total - 1, 2, lambda: kill(stage.nodes[-1], 2))
    measured("the leader dies", total - 2, 3, lambda: kill(stage.nodes[0], total))
    return rounds


# ---------------------------------------------------------------- over etcd


def share(endpoint: str, run_id: str, first: int, count: int, total: int) -> None:
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

    where = Endpoint("etcd", (endpoint,), prefix="bench")
    for number in range(first, first + count):
        store = Counted(EtcdStore(where, run_id, _TTL, 30.0), traffic)
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
        time.sleep(_TTL / 10)


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
        while key not in (line := self.lines.get(timeout=_LIMIT)):
            pass
        return line


def over_etcd(total: int, processes: int) -> list[Round]:
    """The rounds of a job of this size, over a real etcd."""
    rounds: list[Round] = []
    shares: list[Share] = []
    with ExitStack() as stack:
        etcd = EtcdProcess()
        stack.callback(etcd.close)
        run_id, first = uuid.uuid4().hex, 0
        others = max(0, total - _ELDERS)
        shared = [others // processes + (one < others % processes) for one in range(processes)]
        for count in (total - others, *shared):
            arguments = [etcd.endpoint, run_id, str(first), str(count), str(total)]
            process = subprocess.Popen(
                [sys.executable, __file__, "--share", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            shares.append(Share(process))
            first += count
        for one in shares:
            one.hear("ready")

        def costs() -> list[dict[str, Any]]:
            for one in shares:
                one.tell("cost")
            return [one.hear("cpu") for one in shares]

        def measured(what: str, left: int, begin: Callable[[], None]) -> None:
            before, etcd_before, begun = costs(), _cpu(etcd.pid), time.monotonic()
            begin()
            ends = [one.hear("round") for one in shares]
            after, etcd_after = costs(), _cpu(etcd.pid)
            assert {end["size"] for end in ends} == {left}, ends
            cpus = [
                (new[0] - old[0], new[1])
                for one, two in zip(before, after, strict=True)
                for old, new in zip(one["cpu"], two["cpu"], strict=True)
            ]
            rounds.append(
                Round(
                    what,
                    left,
                    max(end["at"] for end in ends) - begun,
                    sum(a["written"] - b["written"] for a, b in zip(after, before, strict=True)),
                    sum(a["received"] - b["received"] for a, b in zip(after, before, strict=True)),
                    max((one for one, wide in cpus if wide), default=0.0),
                    sum(one for one, wide in cpus if not wide) / len(cpus),
                    sum(a["used"] - b["used"] for a, b in zip(after, before, strict=True)),
                    etcd_after - etcd_before,
                )
            )

        def kill(number: int, notice: str) -> None:
            shares[0 if number == 0 else -1].tell(f"kill {number}")
            for one in shares:
                one.tell(f"notice {notice}")

        def start() -> None:
            shares[0].tell("first")
            shares[0].hear("registered")
            for one in shares:
                one.tell("go")

        measured("start", total, start)
        last = total - 1
        measured("a node dies", last, lambda: kill(last, f"{last - 1} {last - 2}"))
        measured("the leader dies", last - 1, lambda: kill(0, ""))
    return rounds


# ---------------------------------------------------------------- the table


def shown(store: str, total: int, rounds: Sequence[Round]) -> str:
    """The rounds of one job as lines."""
    return "\n".join(
        f"{store:8}{total:7}  {one.what:16}{one.seconds:9.2f}{one.written / 1e6:11.2f}"
        f"{one.received / 1e6:11.2f}{one.leader_cpu:13.3f}{1000 * one.member_cpu:14.2f}"
        f"{one.nodes_cpu:12.2f}{one.etcd_cpu:11.2f}"
        for one in rounds
    )


_HEAD = (
    f"{'store':8}{'nodes':>7}  {'round':16}{'seconds':>9}{'MB written':>11}{'MB read':>11}"
    f"{'leader CPU s':>13}{'member CPU ms':>14}{'nodes CPU s':>12}{'etcd CPU s':>11}"
)


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--share"]:
        endpoint, run_id, first, count, total = sys.argv[2:]
        share(endpoint, run_id, int(first), int(count), int(total))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 4000, 10000])
    parser.add_argument(
        "--stores", nargs="+", choices=["memory", "etcd"], default=["memory", "etcd"]
    )
    parser.add_argument("--most-etcd", type=int, default=1000, help="no more nodes over etcd")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", help="where the figures are written")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    print(_HEAD, flush=True)
    for store in args.stores:
        for total in args.nodes:
            if store == "etcd" and total > args.most_etcd:
                continue
            rounds = in_memory(total) if store == "memory" else over_etcd(total, args.processes)
            print(shown(store, total, rounds), flush=True)
            results += [{"store": store, "job": total, **vars(one)} for one in rounds]
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    os._exit(0)  # thousands of participants are not taken leave of one by one


if __name__ == "__main__":
    sys.exit(main())
