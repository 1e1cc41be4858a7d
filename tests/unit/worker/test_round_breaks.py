"""What is told of the breaks between rounds."""

from __future__ import annotations

import gc

from elastic_runtime.worker import round_breaks
from elastic_runtime.worker.round_breaks import begin_break, end_break, use_breaks


class Recorder:
    def __init__(self) -> None:
        self.told: list[object] = []

    def settle(self, *, first: bool) -> None:
        self.told.append("first" if first else "settle")

    def prepare(self, rank: int, world: int) -> None:
        self.told.append((rank, world))


def test_all_that_live_are_told_of_a_break_and_of_its_end() -> None:
    before = len(round_breaks._all)
    one, other = Recorder(), Recorder()
    use_breaks(one)
    use_breaks(other)
    begin_break()
    end_break(1, 3)
    assert one.told == other.told == ["settle", (1, 3)]
    del other
    gc.collect()
    begin_break(first=True)
    assert one.told[2:] == ["first"]
    assert len(round_breaks._all) == before + 1, "what is gone is not kept"
