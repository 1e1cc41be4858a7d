"""Regrouping by torch's reconfigurable groups (torch 2.15 and later): the same get other peers.

``init_process_group(enable_reconfigure=True)`` connects to nobody. For each round every rank writes
a *handle* of each of its groups into the round's store, reads those of all others, and gives the
list to the group, whose ranks are the places in the list then. A handle is valid once, and so is
the number that goes with it. (The protocol: docstrings of ``torch.distributed._reconfigure`` and
``ReconfigureOptions`` in c10d's ``Types.hpp``.)
"""

from __future__ import annotations

import json
import random
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from elastic_runtime.system import tcp_keepalive, torch_private
from elastic_runtime.system.tcp_connections import connections
from elastic_runtime.worker.groups.group_disposal import drop_later
from elastic_runtime.worker.groups.outliving_store import OutlivingStore, RoundStore
from elastic_runtime.worker.groups.regrouping import rehearse_training
from elastic_runtime.worker.groups.round_ranks import TIMEOUT, RankInRound, Ranks
from elastic_runtime.worker.groups.store_clients import BUILD_TIMEOUT

if TYPE_CHECKING:
    from elastic_runtime.worker.groups.store_clients import StoreClient, Stores

# A rank's identity in its handles, which must be unique among all that ever meet: drawn at random.
_IDENTITIES = 1 << 31
# How long a thread that has just been released from a store needs to end, in seconds. One that
# takes longer connects to a peer that is silent, and keeps its groups.
_RELEASE = 0.2


@dataclass(frozen=True, slots=True)
class _KeptGroups:
    """The groups that live as long as this process.

    Attributes:
        store: which they ask.
        own: all ranks once more, over gloo, for what is not training.
        backends: what is reconfigured, in the same order on every rank.
    """

    store: OutlivingStore
    own: dist.ProcessGroup
    backends: tuple[Any, ...]


class SameIdentity(RuntimeError):
    """Two ranks have the same identity, which only one may have."""


class Reconfigure:
    """See ``regrouping.Regrouping``."""

    name: ClassVar[str] = "reconfigure"

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._kept: _KeptGroups | None = None
        self._solos = 0
        self._busy: threading.Thread | None = None

    def rehearse(self) -> None:
        """Trains alone for a moment, in the groups that stay."""
        self.alone()
        rehearse_training()

    def ranks(self, place: RankInRound) -> Ranks:
        """The ranks of a round."""
        return _ReconfiguredRanks(place, self._stores, self)

    def alone(self) -> dist.ProcessGroup:
        """A world of this process alone."""
        kept = self.groups()
        self._solos += 1
        kept.store.current = RoundStore(dist.HashStore())
        for backend in kept.backends:
            handle = backend.get_reconfigure_handle()
            # Rounds have numbers from 1 on: these must not be among them.
            torch_private.reconfigure(backend, -self._solos - 1, [handle], BUILD_TIMEOUT)
        torch_private.renumber_ranks(kept.own, 1)
        return kept.own

    def close(self) -> None:
        """Ends the groups that stay."""
        kept, self._kept = self._kept, None
        if kept is not None:
            ended = [*torch_private.abort_groups(), kept.own]  # which torch does not list
            del kept
            drop_later(ended)

    def groups(self) -> _KeptGroups:
        """The groups that stay, made when they are first needed.

        Those in which a thread still connects for an earlier round, to a peer that says nothing,
        are left to it, and others are made: so no rank waits for a silent peer.
        """
        busy, self._busy = self._busy, None
        if busy is not None:
            busy.join(_RELEASE)
            if busy.is_alive():
                self.close()
        if self._kept is None:
            self._kept = _make_groups(gpu=torch.cuda.is_available())
        return self._kept

    def leave(self, connects: threading.Thread | None) -> list[Any]:
        """Ends all groups of a round but those that stay.

        Args:
            connects: the thread that has connected, and may still do so; None: it never began.

        Returns:
            The groups that are to be dropped.
        """
        self._busy = connects
        return torch_private.end_other_groups()


class _ReconfiguredRanks(Ranks):
    """The ranks of one round, in groups that were there before and will be there after it."""

    def __init__(self, place: RankInRound, stores: Stores, regrouping: Reconfigure) -> None:
        super().__init__(place, stores)
        self._regrouping = regrouping
        self._round: RoundStore | None = None
        self._connects: threading.Thread | None = None

    def interrupt(self) -> None:
        """Releases this rank from whatever it waits for. Safe in any thread, at any time."""
        if self._round is not None:
            self._round.over.set()
        super().interrupt()

    def _connect(self, client: StoreClient, *, gpu: bool) -> dist.ProcessGroup:
        place, kept = self.place, self._regrouping.groups()
        now = self._round = RoundStore(dist.PrefixStore(place.key, client.store))
        kept.store.set_timeout(BUILD_TIMEOUT)
        kept.store.current = now
        before = connections()
        self._apart(lambda: self._reconfigure(kept, now))
        torch_private.renumber_ranks(kept.own, place.size)
        mine = self._note_sockets(before, now.take_seen())
        tcp_keepalive.tend_new(mine)
        torch_private.set_timeout(kept.own, "cpu", TIMEOUT)
        kept.store.set_timeout(TIMEOUT)
        return kept.own

    def _reconfigure(self, kept: _KeptGroups, now: RoundStore) -> None:
        """Gives all groups that stay the peers of this round. In a thread of its own."""
        self._connects = threading.current_thread()
        with kept.store.bound(now):
            try:
                lists = _exchange_handles(self.place, now, kept.backends)
            except SameIdentity:
                self._regrouping.close()
                raise
            for backend, handles in zip(kept.backends, lists, strict=True):
                torch_private.reconfigure(backend, self.place.round, handles, BUILD_TIMEOUT)

    def _end_groups(self) -> list[Any]:
        if self._round is not None:
            self._round.over.set()
        return self._regrouping.leave(self._connects)


def _exchange_handles(
    place: RankInRound, now: RoundStore, backends: tuple[Any, ...]
) -> list[list[str]]:
    """The handles of all ranks, by rank, for each of the groups.

    Raises:
        SameIdentity: another rank has drawn the identity of this one.
        Interrupted: the round is over.
        RuntimeError: a rank did not write its handles, or two have the same.
    """
    mine = [backend.get_reconfigure_handle() for backend in backends]
    now.store.set(f"handles/{place.rank}", json.dumps(mine))
    keys = [f"handles/{rank}" for rank in range(place.size)]
    now.wait(keys, BUILD_TIMEOUT)
    rows = [json.loads(row) for row in now.store.multi_get(keys)]
    lists = [list(column) for column in zip(*rows, strict=True)]
    if lists[0].count(mine[0]) > 1:
        raise SameIdentity("another rank of the round has the same identity; it draws a new one")
    return lists


def _make_groups(*, gpu: bool) -> _KeptGroups:
    store = OutlivingStore()
    store.current = RoundStore(dist.HashStore())  # torch may want to meet others here: it is alone
    hook = sys.excepthook
    identity = random.SystemRandom().randrange(_IDENTITIES)
    own = torch_private.make_reconfigurable(store, identity, TIMEOUT, gpu=gpu)
    sys.excepthook = hook  # torch wraps it, and would call this rank by its identity
    world = dist.group.WORLD
    assert world is not None
    cpu = torch.device("cpu")
    backends = [world._get_backend(cpu), own._get_backend(cpu)]
    if gpu:
        backends.append(world._get_backend(torch.device("cuda")))
    return _KeptGroups(store, own, tuple(backends))
