#!/usr/bin/env python3
"""What a rendezvous of thousands of nodes costs: seconds, bytes and processor time.

The participants and all that they decide are the real ones. A job of n nodes comes together; then
the last one dies, two neighbours notice, all leave the round, and the survivors form the next one;
then the oldest node, which leads, dies, and all notice it. Each round makes a step, so no pause
follows for want of progress. Three stores:

- ``memory``: the store in this process, and one thread that plays all nodes in turn. So the seconds
  are the processor time of all nodes together, and show what grows faster than n. A probe of the
  dead node is answered by the bench.
- ``etcd``: a real etcd and real threads, spread over a few processes; who leads, and who leads
  next, are in one of their own.
- ``embedded``: as with etcd, but the store is the one that a job hosts itself, in a process of its
  own.

    scripts/bench/scale.py --nodes 200 1000 4000 10000 --stores memory etcd embedded --most 1000

Bytes are those of keys and values, as nodes write and receive them. Only the two nodes that die
have a port for probes, which nobody answers while they live, and which refuses afterwards.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elastic_runtime.rendezvous.core.membership_events import Join
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from scripts.bench.scale_nodes import LIMIT, Counted, Node, Round, Traffic
from scripts.bench.scale_server import over_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STORES = ("memory", "etcd", "embedded")
_FOR_EVER = 1e6  # where one thread plays all nodes, none can say in time that it is alive


# ---------------------------------------------------------------- all nodes in one thread


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
        limit = time.monotonic() + LIMIT
        while not until():
            now = time.monotonic()
            assert now < limit, f"nothing came of it in {LIMIT:g} s: {self.there}"
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


# ---------------------------------------------------------------- the table


def shown(store: str, total: int, rounds: Sequence[Round]) -> str:
    """The rounds of one job as lines."""
    return "\n".join(
        f"{store:9}{total:6}  {one.what:16}{one.seconds:9.2f}{one.written / 1e6:11.2f}"
        f"{one.received / 1e6:11.2f}{one.leader_cpu:13.3f}{1000 * one.member_cpu:14.2f}"
        f"{one.nodes_cpu:12.2f}{one.store_cpu:12.2f}"
        for one in rounds
    )


_HEAD = (
    f"{'store':9}{'nodes':>6}  {'round':16}{'seconds':>9}{'MB written':>11}{'MB read':>11}"
    f"{'leader CPU s':>13}{'member CPU ms':>14}{'nodes CPU s':>12}{'store CPU s':>12}"
)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 4000, 10000])
    parser.add_argument("--stores", nargs="+", choices=_STORES, default=list(_STORES))
    parser.add_argument("--most", type=int, default=1000, help="no more nodes over a server")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", help="where the figures are written")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    print(_HEAD, flush=True)
    for store in args.stores:
        for total in args.nodes:
            if store == "memory":
                rounds = in_memory(total)
            elif total <= args.most:
                rounds = over_server(store, total, args.processes)
            else:
                continue
            print(shown(store, total, rounds), flush=True)
            results += [{"store": store, "job": total, **vars(one)} for one in rounds]
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    os._exit(0)  # thousands of participants are not taken leave of one by one


if __name__ == "__main__":
    sys.exit(main())
