"""A job whose ranks train alone, and what must be true of the samples that it has trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.in_place.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = str(Path(__file__).with_name("replica_job.py"))


class Replicas(Job):
    """One job of ``replica_job.py``.

    Args:
        folder: for notes and orders.
        *options: of ``elastic-run``.
        seconds: length of an inner step.
        **kind: how it trains.
    """

    def __init__(self, folder: Path, *options: str, seconds: float = 0.01, **kind: Any) -> None:
        super().__init__(folder, SCRIPT, *options, kind=json.dumps(kind), seconds=seconds)

    def tell(self, what: str, pid: int) -> None:
        """Has a worker do something out of the ordinary."""
        (self.folder / f"{what}-{pid}").touch()

    def together(self, size: int, *, inner: int = 1, step: int = 0, after: int = 0) -> list[int]:
        """Waits until so many ranks of one world have each gone so far.

        Args:
            size: how many.
            inner: inner steps since their last sync, at least.
            step: syncs, at least.
            after: in a round after this one.

        Returns:
            Their processes, by rank.
        """

        def look() -> list[int]:
            entered = {note["pid"]: note for note in self.said("enter")}
            newest = max((note["round"] for note in entered.values()), default=0)
            if newest <= after:
                return []
            there = {n["rank"]: pid for pid, n in entered.items() if n["round"] == newest}
            last = {note["pid"]: note for note in self.said("inner") if note["pid"] in entered}
            far = [
                pid
                for pid in there.values()
                if pid in last
                and last[pid]["at"] > entered[pid]["at"]
                and (last[pid]["step"], last[pid]["inner"]) >= (step, inner)
            ]
            return [there[rank] for rank in range(size)] if len(far) == size == len(there) else []

        return list(self.wait(look, f"{size} ranks that train"))

    @property
    def round(self) -> int:
        """The newest round that a rank has entered."""
        return max((note["round"] for note in self.said("enter")), default=0)

    def counted(self, killed: Sequence[int]) -> Counter[int]:
        """How often each sample is part of the common model, or of a replica that goes on.

        Args:
            killed: processes; what they had trained since their last sync does not count.
        """
        times: Counter[int] = Counter()
        for pid in {note["pid"] for note in self.said("inner")}:
            mine = [note for note in self.said("inner") if note["pid"] == pid]
            if pid in killed:
                syncs = [note for note in self.said("sync") if note["pid"] == pid]
                last = max((note["step"] for note in syncs), default=0)
                mine = [note for note in mine if note["step"] < last]
            times.update(number for note in mine for number in note["numbers"])
        return times

    def check_all_once(self, size: int) -> None:
        """Each sample counts once."""
        times = self.counted([])
        assert (len(times), set(times.values())) == (size, {1}), self.story()

    def check_lost(self, killed: int, size: int, most: int) -> None:
        """No sample counts twice, and missing are at most so many that a killed process had."""
        times = self.counted([killed])
        assert max(times.values()) == 1
        lost = {n for note in self.said("inner") if note["pid"] == killed for n in note["numbers"]}
        missing = set(range(size)) - times.keys()
        assert missing <= lost | self.never_seen(size)
        assert len(missing) <= most

    def never_seen(self, size: int) -> set[int]:
        """Samples that no inner step has had."""
        seen = {number for note in self.said("inner") for number in note["numbers"]}
        return set(range(size)) - seen

    def check_alike(self, size: int) -> None:
        """All ranks have ended with the same common model, after as many inner steps."""
        ends = self.said("end")
        newest = {note["pid"]: note for note in ends}
        assert len(newest) == size, self.story()
        for what in ("step", "made", "sum", "finite"):
            assert len({note[what] for note in newest.values()}) == 1, (what, newest)
        assert all(note["finite"] for note in newest.values())
        assert not self.events("state.lacks"), "nothing is missing in the State"
