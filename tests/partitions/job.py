"""Real jobs on a network that is cut, and what a cut costs them."""

from __future__ import annotations

import base64
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import RoundRecord
from tests.chaos.in_place_cluster import InPlaceCluster
from tests.model.history import Committed, Entered, Strike

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elastic_runtime.protocol.records import Budget
    from tests.partitions.cuts import Cut
    from tests.partitions.network import Network

_PATIENCE = 90.0
# What a job must make by itself, with all its nodes, before it counts as whole again.
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Figures:
    """What a cut cost. All times in seconds.

    Attributes:
        cut: which one.
        others: from the cut to the first step of a round that was formed after it; -1: none was.
        stalled: the longest time in which nobody made a step, from the cut until all were back.
        back: from the heal until all nodes had made a step together.
        rounds: how many rounds it took.
        replaced: workers that were not there before.
        failures, fruitless: what the budget counted more than before.
    """

    cut: Cut
    others: float
    stalled: float
    back: float
    rounds: int
    replaced: int
    failures: int
    fruitless: int

    def __str__(self) -> str:
        others = "-" if self.others < 0 else f"{self.others:.1f}"
        return (
            f"{self.cut}: others go on after {others}, stalled {self.stalled:.1f}, back "
            f"{self.back:.1f} after the heal; {self.rounds} rounds, {self.replaced} workers "
            f"replaced, {self.failures} failures counted, {self.fruitless} fruitless"
        )


class PartitionedJob(InPlaceCluster):
    """A job in place with each node in a namespace of its own.

    Args:
        directory: for logs, histories and weights.
        network: where it runs; it has a place for each node.
        least: fewest nodes that train.
        hang: ``--hang-timeout``.
        options: further options of ``elastic-run``.
    """

    def __init__(
        self,
        directory: Path,
        network: Network,
        least: int = 1,
        hang: float = 6.0,
        options: Sequence[str] = (),
    ) -> None:
        self._network = network
        self.names = network.places[1:]
        self.figures: list[Figures] = []
        # Whom cuts touched, and from when to when.
        self._spells: list[tuple[set[str], int, int]] = []
        own = ("--last-call", "1", "--max-restarts", "0", "--hang-timeout", str(hang), *options)
        bounds = least, len(self.names)
        super().__init__(directory, network, bounds=bounds, options=own)  # type: ignore[arg-type]

    def place(self, name: str) -> Sequence[str]:
        """In its namespace."""
        return self._network.inside(name)

    def suffer(self, cut: Cut) -> Figures:
        """Cuts, heals, and waits until all nodes train together again."""
        if cut.calm:
            self._until_calm()
        before = self.budget()
        workers, rounds = set(self._processes), self.round
        ways = cut.ways(self.names)
        self._network.cut(ways, cut.how)
        began = time.monotonic_ns()
        # The length of the cut is what is tested.
        self.wait(lambda: time.monotonic_ns() > began + cut.seconds * 1e9, "", cut.seconds + 30)
        self._network.heal()
        healed = time.monotonic_ns()
        touched = {place for way in ways for place in (way.sender, way.receiver)}
        self._spells.append((touched, began, healed))
        self.wait(lambda: self._whole_since(healed) > 0, f"all back after: {cut}", _PATIENCE)
        whole = self._whole_since(healed)
        after = self.budget()
        made = [one for one in self._records if isinstance(one, Committed)]
        steps = sorted(one.at for one in made if began < one.at <= whole)
        later = [one.at for one in made if one.round > rounds and one.at > began]
        gaps = [b - a for a, b in zip([began, *steps], [*steps, whole], strict=True)]
        figures = Figures(
            cut,
            others=(min(later) - began) / 1e9 if later else -1.0,
            stalled=max(gaps) / 1e9,
            back=(whole - healed) / 1e9,
            rounds=self.round - rounds,
            replaced=len(set(self._processes) - workers),
            failures=after.failures - before.failures,
            fruitless=max(0, after.fruitless - before.fruitless),
        )
        self.figures.append(figures)
        return figures

    def budget(self) -> Budget:
        """The job's budget, as the newest round in the store has it."""
        listed = json.loads(self._network.etcdctl("get", "--prefix", "", "-w", "json"))
        for pair in listed["kvs"]:
            key = base64.b64decode(pair["key"]).decode()
            if key.endswith("/round"):
                return RoundRecord.decode(key, base64.b64decode(pair["value"])).budget
        raise AssertionError(f"no round in the store: {listed}")

    def check(self, steps: int) -> None:
        """The history keeps the guarantee; who was out of reach is taken as stopped."""
        self.strikes = self._unreached()
        super().check(steps)

    def _whole_since(self, moment: int) -> int:
        """When all nodes had made a step together after a moment; 0: not yet."""
        self.read()
        count = len(self.names)
        here = self._rounds[self.round]
        if [one.world for one in here if isinstance(one, Entered)] != [count] * count:
            return 0
        times: dict[int, list[int]] = defaultdict(list)  # of the commits, by step
        for one in here:
            if isinstance(one, Committed) and one.at > moment:
                times[one.step].append(one.at)
        return min((max(ats) for ats in times.values() if len(ats) == count), default=0)

    def _unreached(self) -> list[Strike]:
        """Those whom a round left out while they were cut off: what they alone held is not lost,
        but out of reach, as if they had been stopped."""
        entered = [
            [one for one in self._rounds[number] if isinstance(one, Entered)]
            for number in sorted(self._rounds)
        ]
        found = []
        for before, after in pairwise(filter(None, entered)):
            since, opened = (min(one.at for one in here) for here in (before, after))
            cut_off = {
                node
                for nodes, began, healed in self._spells
                if began < opened and since < healed
                for node in nodes
            }
            inside = {one.process for one in after}
            found += [
                Strike(opened - 1, one.process, "stopped")
                for one in before
                if one.process not in inside
                and self._processes[one.process].mark.rpartition("/")[2] in cut_off
            ]
        return found
