"""A store that outlives its host: what a reconfigurable group asks, whichever round it is in.

gloo keeps the store with which a group was made for the life of the process, and exchanges
addresses through it at each reconfiguration. The stores of rounds are hosted by agents, and end
with them. So the group is given this one, which forwards to the present round's.

A thread that connects for a round belongs to that round: if it is late it can neither read nor
write what is the next round's. It waits by asking again and again, so that it never holds the
client of the round's store while it waits for a peer, and so that an interrupt releases it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from elastic_runtime.backoff import Backoff
from elastic_runtime.worker.groups.round_ranks import TIMEOUT, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

# Between two questions for a key that a peer has not written yet, in seconds. A peer that is as
# far as this rank writes it within a millisecond.
_ASKS = Backoff(first=0.0002, longest=0.02, factor=1.3)


class RoundStore:
    """One round's store, until the round is left.

    Attributes:
        store: everything in it is the round's.
        over: set when the round is left or interrupted; it ends all waits.
        seen: what was written and read while the ranks connect: their addresses are in it.
    """

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.over = threading.Event()
        self.seen: list[bytes] = []
        self._notes = True

    def note(self, *values: bytes) -> None:
        """Remembers what was written or read, until ``seen`` is taken."""
        if self._notes:
            self.seen.extend(values)

    def take_seen(self) -> list[bytes]:
        """What was seen; from now on nothing more is noted, as the rest is the script's."""
        self._notes = False
        seen, self.seen = self.seen, []
        return seen

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Waits until all keys are there.

        Args:
            keys: without prefix.
            timeout: how long at most.

        Raises:
            Interrupted: the round is over.
            DistStoreError: they did not come in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        asked = 0
        while True:
            if self.over.is_set():
                raise Interrupted
            if self.store.check(list(keys)):
                return
            asked += 1
            if time.monotonic() > deadline:
                raise dist.DistStoreError(
                    f"wait timeout after {timeout}: no rank has written {', '.join(keys)}"
                )
            self.over.wait(_ASKS.pause(asked))


class OutlivingStore(dist.Store):  # type: ignore[misc]  # torch has no types
    """The store of a reconfigurable group; ``current`` says where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.current: RoundStore | None = None
        self._timeout = TIMEOUT
        self._thread = threading.local()

    @contextmanager
    def bound(self, to: RoundStore) -> Iterator[None]:
        """Within the block, what this thread asks goes to one round's store, whatever comes."""
        before = getattr(self._thread, "round", None)
        self._thread.round = to
        try:
            yield
        finally:
            self._thread.round = before

    def _round(self) -> RoundStore:
        found: RoundStore | None = getattr(self._thread, "round", None) or self.current
        if found is None or found.over.is_set():
            raise Interrupted
        return found

    def _ask(self, question: Callable[[dist.Store], Any]) -> Any:
        return question(self._round().store)

    def _await(self, keys: Sequence[str]) -> None:
        self._round().wait(keys, self._timeout)

    # What torch asks of a store.

    def set(self, key: str, value: bytes | str) -> None:
        """Writes a key."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._round().note(data)
        self._ask(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        """Reads a key, which is waited for."""
        self._await([key])
        data = bytes(self._ask(lambda store: store.get(key)))
        self._round().note(data)
        return data

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Reads keys, which are waited for."""
        self._await(keys)
        found = [bytes(one) for one in self._ask(lambda store: store.multi_get(keys))]
        self._round().note(*found)
        return found

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Writes keys."""
        self._round().note(*(bytes(one) for one in values))
        self._ask(lambda store: store.multi_set(keys, values))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits for keys."""
        self._round().wait(keys, self._timeout if timeout is None else timeout)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask(lambda store: store.check(keys)))

    def add(self, key: str, amount: int) -> int:
        """Counts."""
        return int(self._ask(lambda store: store.add(key, amount)))

    def append(self, key: str, value: Any) -> None:
        """Adds to what a key holds."""
        self._ask(lambda store: store.append(key, value))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Writes a key if it holds what is expected."""
        return bytes(self._ask(lambda store: store.compare_set(key, expected, desired)))

    def delete_key(self, key: str) -> bool:
        """Deletes a key."""
        return bool(self._ask(lambda store: store.delete_key(key)))

    def num_keys(self) -> int:
        """How many keys there are."""
        return int(self._ask(lambda store: store.num_keys()))

    # By these names C++ calls them.
    deleteKey, getNumKeys = delete_key, num_keys

    def has_extended_api(self) -> bool:
        """As a TCPStore."""
        return True

    def clone(self) -> OutlivingStore:
        """The same: it has no connection of its own."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """How long keys are waited for from now on."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """How long keys are waited for."""
        return self._timeout
