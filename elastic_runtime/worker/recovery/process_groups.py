"""The connected ranks of one round: built, interrupted from another thread, and taken apart.

A rank that waits for a peer which has died or gone silent must be released at once, whatever it
is doing. Three things make that so:

- Each gloo group, also one that the script makes in ``train``, is built in a thread of its own, so
  that the main thread can be released if a peer dies while the ranks connect to each other.
- An interrupt ends the reading side (``SHUT_RD``) of the groups' connected sockets: gloo then
  raises in the thread that waits. Ending both sides loses that error now and then: a send that
  fails at once is queued after the error was told to all that are queued. And ending a listening
  socket ends the process.
- Later, when gloo has seen that end, the sockets are ended altogether, since children of this
  process (of a ``DataLoader``) hold copies of them, and the groups are dropped; that waits for
  gloo's own threads, so it happens in the background.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic_runtime.system import torch_private, torch_tcp_store
from elastic_runtime.system.tcp_connections import TcpConnection, connections
from elastic_runtime.worker.recovery.group_disposal import drop_later

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

# While the ranks connect, no rank waits longer than this for a peer that cannot be reached.
_BUILD_TIMEOUT = timedelta(seconds=30)
# Afterwards faults interrupt; these are torch's own defaults for gloo and NCCL. NCCL also connects
# with its first collective, for which the ranks may come at very different times.
_TIMEOUT = timedelta(minutes=30)
_TIMEOUT_NCCL = timedelta(minutes=10)
# How long to wait for a store that may be needed later.
_AHEAD = timedelta(seconds=30)


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


@dataclass(frozen=True, slots=True)
class _StoreClient:
    """A client of a TCPStore, and its socket."""

    store: dist.TCPStore
    sockets: frozenset[TcpConnection]


class Stores:
    """Clients of the agents' stores, one each, kept from round to round.

    A new connection costs two name look-ups (torch asks for the peer's name), which a resolver
    that drops a query makes a matter of seconds; so they are made ahead of the fault.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, int], _StoreClient] = {}
        self._lock = threading.Lock()

    def client(self, host: str, port: int, patience: timedelta = _TIMEOUT) -> _StoreClient:
        """The client of this store, made if there is none.

        Args:
            host, port: where it listens, or will.
            patience: how long to wait for it. In the first round it comes with its node's script,
                which may take minutes to come to ``elastic.run``.

        Raises:
            RuntimeError: there is no such store, and none came.
        """
        with self._lock:
            known = self._clients.get((host, port))
        if known is not None:
            return known
        # torch would print lines that only worry people.
        if not torch_tcp_store.await_listener(host, port, patience.total_seconds()):
            raise RuntimeError(f"no store listens at {host}:{port}, after {patience}")
        before = connections()  # whose a socket is that others make meanwhile, shows in its port
        store = dist.TCPStore(
            host, port, is_master=False, timeout=_BUILD_TIMEOUT, wait_for_workers=False
        )
        made = _StoreClient(store, frozenset(s for s in connections() - before if s.port == port))
        with self._lock:
            return self._clients.setdefault((host, port), made)

    def connect_ahead(self, places: Sequence[Sequence[Any]]) -> None:
        """Connects, in the background, to the stores that the next rounds are likely to use.

        Args:
            places: host and port of each; one that cannot be reached is tried again when needed.
        """

        def connect() -> None:
            for host, port in places:
                with suppress(RuntimeError):
                    self.client(host, port, _AHEAD)

        threading.Thread(target=connect, name="elastic-ahead", daemon=True).start()

    def keep(self, places: Collection[tuple[str, int]]) -> None:
        """Drops the clients of all other stores: those of nodes that are gone would pile up."""
        with self._lock:
            others = self._clients.keys() - set(places)
        for host, port in others:
            self.forget(host, port)

    def forget(self, host: str, port: int) -> None:
        """Drops a client that may be in the middle of a call, and ends that call."""
        with self._lock:
            known = self._clients.pop((host, port), None)
        for one in known.sockets if known else ():
            one.shut(socket.SHUT_RDWR)


def rehearse() -> None:
    """Does once, alone, what a rank does when it enters a round: the first time takes longest.

    Loading kernels, starting autograd's threads and the like take some 15 ms in a new process,
    for which all ranks of the round would wait. Nothing of it is the script's, so the modes that it
    has set for its own tensors do not count.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        weight = torch.nn.Linear(8, 8, bias=False, device="meta").to_empty(device="cpu")
        torch.nn.init.ones_(weight.weight)
        parallel = torch.nn.parallel.DistributedDataParallel(weight)
        loss = torch.nn.functional.cross_entropy(
            parallel(torch.ones(4, 8)), torch.zeros(4, dtype=torch.int64)
        )
        loss.backward()
    drop_later(torch_private.abort_groups())


class Ranks:
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
        """Connects to all other ranks, and makes the default process group.

        Raises:
            Interrupted: ``interrupt`` was called.
            RuntimeError: a peer could not be reached.
        """
        place = self.place
        gpu = torch.cuda.is_available()
        client = self._apart(lambda: self._stores.client(place.host, place.port))
        client.store.set_timeout(_BUILD_TIMEOUT)  # an earlier round may have raised it
        # Until the groups are taken apart: those that the script makes are ended with ours.
        self._recording.enter_context(torch_private.gloo_built_by(self._build_gloo))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=dist.PrefixStore(place.key, client.store),
            rank=place.rank,
            world_size=place.size,
            timeout=_BUILD_TIMEOUT,
        )
        self.group = self.another_group()
        torch_private.set_timeout(dist.group.WORLD, "cpu", _TIMEOUT)
        if gpu:
            torch_private.set_timeout(dist.group.WORLD, "cuda", _TIMEOUT_NCCL)
            client.store.set_timeout(_TIMEOUT_NCCL)  # ranks of NCCL find each other there
        self.building = False

    def another_group(self) -> dist.ProcessGroup:
        """One more group of all ranks over gloo, which ends with the others.

        Raises:
            Interrupted: ``interrupt`` was called.
            RuntimeError: a peer could not be reached.
        """
        group = dist.new_group(backend="gloo", timeout=_BUILD_TIMEOUT)
        assert group is not None
        torch_private.set_timeout(group, "cpu", _TIMEOUT)
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
        """Ends all groups. The caller must be out of the ``except`` block of what ended them."""
        if self.building or self._waits:  # a thread of the script's may still make a group
            self._stores.forget(self.place.host, self.place.port)
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            one.shut(socket.SHUT_RD)
        self.group = None
        self._recording.close()
        groups = torch_private.abort_groups()
        sys.excepthook = self._hook  # torch wraps it with each group
        drop_later(groups, sockets)

    def _build_gloo(self, make: Callable[[], list[bytes]]) -> list[bytes]:
        """Makes a gloo group, and takes note of its sockets.

        They are those at one end of which a rank of the group listens: what other threads of the
        script connect meanwhile is theirs.
        """
        before = connections()
        listeners: list[bytes] = self._apart(make)
        with self._lock:
            self._sockets |= {one for one in connections() - before if one.meets(listeners)}
        if self.interrupted.is_set():
            raise Interrupted
        return listeners

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
