"""Real jobs, each node in a namespace of its own, whose network is cut."""

from __future__ import annotations

import base64
import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from elastic_runtime.protocol.round_records import RoundRecord
from tests.chaos.fleet import Fleet
from tests.chaos.harness import Cluster
from tests.chaos.in_place_cluster import InPlaceCluster
from tests.model.history import Committed, Entered, Strike
from tests.partitions import figures
from tests.partitions.figures import Figures, Made

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elastic_runtime.protocol.round_records import Budget
    from tests.partitions.cuts import Cut
    from tests.partitions.network import Network

# How long after a heal all nodes may take to be back, in seconds. No promise: what it took is told.
_PATIENCE = 60.0
_OPTIONS = ("--last-call", "1", "--max-restarts", "0", "--hang-timeout")
_ENDLESS = 1 << 20


class Partitioned(Fleet):
    """What can be done to a job on a network of ours; mixed into one of the clusters of chaos."""

    network: Network
    spells: list[tuple[set[str], int, int]]  # whom cuts touched, from when to when

    def _settings(
        self, network: Network, least: int = 1, hang: float = 6.0, options: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What its cluster is made with.

        Args:
            network: where it runs; each of its places gets a node.
            least: fewest nodes that train.
            hang: ``--hang-timeout``.
            options: further options of ``elastic-run``.
        """
        self.network, self.spells = network, []
        bounds = least, len(network.places) - 1
        return {"bounds": bounds, "options": (*_OPTIONS, str(hang), *options)}

    def place(self, name: str) -> Sequence[str]:
        """In its namespace."""
        return self.network.inside(name)

    def made(self) -> list[Made]:
        """All steps that all ranks have made so far."""
        raise NotImplementedError

    def suffer(self, cut: Cut) -> Figures:
        """Cuts, heals, waits until all nodes train together again, and says what it cost."""
        names = self.network.places[1:]
        since = time.monotonic_ns() if cut.calm else 0
        self.wait(lambda: self._whole_at(since) > 0, f"all together before: {cut}", _PATIENCE)
        before, made = self._budget(), self.made()
        ways = cut.ways(names)
        self.network.cut(ways, cut.how)
        began = time.monotonic_ns()
        # The length of the cut is what is tested.
        self.wait(lambda: time.monotonic_ns() > began + cut.seconds * 1e9, "", cut.seconds + 30)
        self.network.heal()
        healed = time.monotonic_ns()
        touched = {place for way in ways for place in (way.sender, way.receiver)}
        self.spells.append((touched, began, healed))
        self.wait(lambda: self._whole_at(healed) > 0, f"all together after: {cut}", _PATIENCE)
        whole = self._whole_at(healed)
        after, rounds = self._budget(), max(one.round for one in made)
        known, made = {one.worker for one in made}, self.made()
        return Figures(
            cut,
            others=figures.others_after(made, began, whole, rounds),
            stalled=figures.longest_stall(made, began, whole),
            back=(whole - healed) / 1e9,
            rounds=max(one.round for one in made) - rounds,
            replaced=len({one.worker for one in made} - known),
            repeated=figures.repeated_steps(made, began),
            failures=after.failures - before.failures,
            fruitless=max(0, after.fruitless - before.fruitless),
        )

    def _whole_at(self, since: int) -> int:
        return figures.whole_at(self.made(), len(self.nodes), since)

    def _budget(self) -> Budget:
        """The job's budget, as the newest round in the store has it."""
        listed = json.loads(self.network.etcdctl("get", "--prefix", "", "-w", "json"))
        for pair in listed["kvs"]:
            key = base64.b64decode(pair["key"]).decode()
            if key.endswith("/round"):
                return RoundRecord.decode(key, base64.b64decode(pair["value"])).budget
        raise AssertionError(f"no round in the store: {listed}")


class InPlaceJob(Partitioned, InPlaceCluster):
    """A job in place."""

    def __init__(self, directory: Path, network: Network, *args: Any, **settings: Any) -> None:
        own = self._settings(network, *args, **settings)
        # A cut may find all ranks between optimizer and commit, and nobody has died: there is no
        # checkpoint to fall back to.
        super().__init__(directory, network, shadow=True, **own)  # type: ignore[arg-type]

    @property
    def may_be_forsaken(self) -> int:
        """A cut that resets connections does it on a busy machine once in ten."""
        return 2 + len(self.spells) // 5

    def made(self) -> list[Made]:
        """All commits."""
        self.read()
        records = self.histories.records
        worlds = {one.round: one.world for one in records if isinstance(one, Entered)}
        return [
            Made(one.at, one.process, one.round, worlds[one.round], one.step)
            for one in records
            if isinstance(one, Committed)
        ]

    def check(self, steps: int) -> None:
        """The history keeps the guarantee; who was out of reach is taken as stopped."""
        self.strikes = self._unreached()
        super().check(steps)

    def _unreached(self) -> list[Strike]:
        """Those whom a round left out while they were cut off: what they alone held is not lost,
        but out of reach, as if they had been stopped."""
        entered = [
            [one for one in self.histories.rounds[number] if isinstance(one, Entered)]
            for number in sorted(self.histories.rounds)
        ]
        found = []
        for before, after in pairwise(filter(None, entered)):
            since, opened = (min(one.at for one in here) for here in (before, after))
            cut_off = {
                node
                for nodes, began, healed in self.spells
                if began < opened and since < healed
                for node in nodes
            }
            inside = {one.process for one in after}
            found += [
                Strike(opened - 1, one.process, "stopped")
                for one in before
                if one.process not in inside
                and self.histories.processes[one.process].mark.rpartition("/")[2] in cut_off
            ]
        return found


class PlainJob(Partitioned, Cluster):
    """A script that restarts from its checkpoints."""

    def __init__(self, directory: Path, network: Network, *args: Any, **settings: Any) -> None:
        own = self._settings(network, *args, **settings)
        super().__init__(directory, f"etcd://{network.endpoint}", _ENDLESS, seconds=0.02, **own)

    def made(self) -> list[Made]:
        """All notes."""
        return [
            Made(int(note.at * 1e9), note.worker, note.round, note.world, note.step)
            for note in self.notes()
        ]

    def finish(self, patience: float = 60.0) -> None:
        """Ends the training, and checks all that must be true of it."""
        self.end_training()
        super().finish(patience)
