"""A large round whose members lie in parts, and a store that can be read or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol.records import ROUND
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.core.round_parts import split_round
from elastic_runtime.rendezvous.policy import Layout
from elastic_runtime.rendezvous.round_completer import RoundCompleter
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    StoreEntry,
    StoreSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def sealed(size: int, number: int = 7) -> RoundRecord:
    members = tuple(
        Member(f"{rank:032x}", f"node-{rank}", "10.0.0.1", 1 + rank % 8, 1000, 2000)
        for rank in range(size)
    )
    return RoundRecord(number, "life", members, 2000, "first round", sealed_by=members[0].node)


def told(events: Sequence[object]) -> RoundRecord:
    """The round in the last of the events."""
    event = events[-1]
    assert isinstance(event, Changed | StoreSnapshot)
    entries = event.puts if isinstance(event, Changed) else event.entries
    return RoundRecord.decode(ROUND, next(it for it in entries if it.key == ROUND).value)


class Shelf:
    """Entries that can be read, and which prefixes were."""

    def __init__(self, last: RoundRecord, layout: Layout) -> None:
        head, writes = split_round(last, layout)
        puts = [put for write in writes for put in write.puts]
        self.entries = [StoreEntry(put.key, put.value, 1, 1) for put in puts]
        self.round_record = head
        self.round = StoreEntry(ROUND, head.encode(), 1, 1)
        self.reads: list[str] = []
        self.serves = True

    def read(self, prefix: str) -> Sequence[StoreEntry]:
        if not self.serves:
            raise StoreUnavailable("no answer")
        self.reads.append(prefix)
        return [entry for entry in self.entries if entry.key.startswith(prefix)]

    def shown(self, node: str, wide: bool = False) -> RoundRecord:
        completer = RoundCompleter(self.read, Layout().keepers)
        shown = told(completer.take([Changed((self.round,))], node, wide, 0.0))
        assert not completer.owed
        return shown
