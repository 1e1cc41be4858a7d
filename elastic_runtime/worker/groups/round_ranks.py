"""The connected ranks of one round: what both ways of regrouping have in common.

A rank that waits for a peer which has died or gone silent must be released at once, whatever it
is doing. Three things make that so:

- Whatever connects to peers, also a group that the script makes in ``train``, does so in a thread
  of its own, so that the main thread can be released if a peer dies while the ranks connect.
- An interrupt ends the reading side (``SHUT_RD``) of the groups' connected sockets: gloo then
  raises in the thread that waits (its own ``abort`` does nothing, also in torch 2.15). Ending both
  sides loses that error now and then: a send that fails at once is queued after the error was told
  to all that are queued. And ending a listening socket ends the process.
- Later, when gloo has seen that end, the sockets are ended altogether, since children of this
  process (of a ``DataLoader``) hold copies of them, and groups that are over are dropped; that
  waits for gloo's own threads, so it happens in the background.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic_runtime.system import torch_private
from elastic_runtime.system.tcp_connections import TcpConnection, connections
from elastic_runtime.worker.groups.group_disposal import drop_later
from elastic_runtime.worker.groups.store_clients import BUILD_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.worker.groups.store_clients import StoreClient, Stores

# Once the ranks are connected, faults interrupt; these are torch's own defaults for gloo and NCCL.
# NCCL also connects with its first collective, for which the ranks may come at very different
# times.
TIMEOUT = timedelta(minutes=30)
TIMEOUT_NCCL = timedelta(minutes=10)


class Interrupted(Exception):
    """The ranks were interrupted while they connected."""


@dataclass(frozen=True, slots=True)
class RankInRound:
    """A rank's place in a round.

    Attributes:
        round: the round.
        rank, size: this rank, and how many there are.
        host, port: the TCPStore that the round uses.
        key: prefix of all that the round keeps there.
    """

    round: int
    rank: int
    size: int
    host: str
    port: int
    key: str


class Ranks(ABC):
    """This rank's connection to all others of a round.

    Attributes:
        building: the ranks are not connected yet, and the script has not run.
        met: a step was committed, so that all have met in its collectives.
        group: all ranks once more, over gloo, for what is not training.
        interrupted: ``interrupt`` was called.
    """

    group: dist.ProcessGroup | None

    def __init__(self, place: RankInRound, stores: Stores) -> None:
        """Does nothing yet: ``interrupt`` may come before ``build``.

        Args:
            place: this rank's place.
            stores: where the round's store is asked for.
        """
        self.place = place
        self.interrupted = threading.Event()
        self.group = None
        self._stores = stores
        self._waits: list[queue.SimpleQueue[tuple[Any, BaseException | None]]] = []
        self._lock = threading.Lock()
        self._sockets: set[TcpConnection] = set()
        self.building = True
        self.met = False
        self._recording = ExitStack()
        self._hook = sys.excepthook

    def build(self) -> None:
        """Connects to all other ranks, which is also the default process group then.

        Raises:
            Interrupted: ``interrupt`` was called.
            RuntimeError: a peer could not be reached.
        """
        place = self.place
        gpu = torch.cuda.is_available()
        if gpu:
            torch_private.outlive_nccl_errors()
        client = self._apart(lambda: self._stores.client(place.host, place.port))
        client.store.set_timeout(BUILD_TIMEOUT)  # an earlier round may have raised it
        # Until the round is left: the groups that the script makes are ended with it.
        self._recording.enter_context(torch_private.gloo_built_by(self._build_gloo))
        self.group = self._connect(client, gpu=gpu)
        torch_private.set_timeout(dist.group.WORLD, "cpu", TIMEOUT)
        if gpu:
            torch_private.set_timeout(dist.group.WORLD, "cuda", TIMEOUT_NCCL)
            client.store.set_timeout(TIMEOUT_NCCL)  # ranks of NCCL find each other there
        self.building = False

    @abstractmethod
    def _connect(self, client: StoreClient, *, gpu: bool) -> dist.ProcessGroup:
        """Makes the default process group one of all ranks.

        Args:
            client: of the round's store.
            gpu: there are GPUs to connect as well.

        Returns:
            All ranks once more, over gloo.
        """

    @abstractmethod
    def _end_groups(self) -> list[Any]:
        """Ends the groups that are over with this round; they are still to be dropped."""

    def another_group(self) -> dist.ProcessGroup:
        """One more group of all ranks over gloo, which ends with the round.

        Raises:
            Interrupted: ``interrupt`` was called.
            RuntimeError: a peer could not be reached.
        """
        group = dist.new_group(
            backend="gloo", timeout=BUILD_TIMEOUT, group_desc=torch_private.OWN_GROUP
        )
        assert group is not None
        torch_private.set_timeout(group, "cpu", TIMEOUT)
        return group

    def interrupt(self) -> None:
        """Releases this rank from whatever it waits for. Safe in any thread, at any time."""
        self.interrupted.set()
        with self._lock:
            connecting = bool(self._waits)
            for each in self._waits:
                each.put((None, Interrupted()))
            sockets = set(self._sockets)
        for one in sockets:
            one.shut(socket.SHUT_RD)
        torch_private.abort_nccl()
        # A thread that connects, also for a group of the script or of a save, waits in the store's
        # client for the peers' addresses, and no other thread can use the client meanwhile. Ranks
        # of NCCL wait there in their first collective.
        if connecting or not self.met:
            self._stores.forget(self.place.host, self.place.port)

    def take_apart(self) -> None:
        """Leaves the round. The caller must be out of the ``except`` block of what ended it."""
        if self.building or self._waits:  # a thread of the script's may still make a group
            self._stores.forget(self.place.host, self.place.port)
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            one.shut(socket.SHUT_RD)
        self.group = None
        self._recording.close()
        groups = self._end_groups()
        sys.excepthook = self._hook  # torch wraps it with each default group
        drop_later(groups, sockets)

    def _build_gloo(self, make: Callable[[], list[bytes]]) -> list[bytes]:
        """Makes a gloo group, and takes note of its sockets."""
        before = connections()
        listeners: list[bytes] = self._apart(make)
        self._note_sockets(before, listeners)
        return listeners

    def _note_sockets(
        self, before: set[TcpConnection], listeners: list[bytes]
    ) -> set[TcpConnection]:
        """Takes note of what was connected, for an interrupt.

        It is that at one end of which a rank of the group listens: what other threads of the script
        connect meanwhile is theirs.

        Args:
            before: the connections from before the ranks connected.
            listeners: where the ranks listen for each other.

        Raises:
            Interrupted: it came too late for an interrupt.
        """
        mine = {one for one in connections() - before if one.meets(listeners)}
        with self._lock:
            self._sockets |= mine
        if self.interrupted.is_set():
            raise Interrupted
        return mine

    def _apart(self, work: Callable[[], Any]) -> Any:
        """Does something in another thread; an interrupt does not wait for it."""
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def do() -> None:
            try:
                answer.put((work(), None))
            except BaseException as error:
                answer.put((None, error))

        with self._lock:
            if self.interrupted.is_set():
                raise Interrupted
            self._waits.append(answer)
        threading.Thread(target=do, name="elastic-connect", daemon=True).start()
        value, error = answer.get()
        with self._lock:
            self._waits.remove(answer)
        if error is not None:
            raise error
        return value
