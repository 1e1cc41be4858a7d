"""What the stores of one process share for one endpoint: channel, watch stream, and a thread.

An agent has one store, but a bench or ``elasticctl`` may have many. With one stream of watches
for all of them, and one thread on which all their events are delivered, a store costs neither a
thread nor a poll. The thread takes posted calls one after the other, so what runs there needs no
locks; it must not block.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, ClassVar, Protocol

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.etcd_client import EtcdClient
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import canceled
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.stores.etcd.etcd_keys import Range

# The server's name for a watch that it would not create; it does not say which one it was.
_NO_WATCH = -1

_LOG = logging.getLogger(__name__)


class Watcher(Protocol):
    """Gets the responses of a watch, on the hub's thread."""

    def on_response(self, watch: int, response: rpc.WatchResponse) -> None:
        """A response of the watch has come."""

    def broken(self, error: StoreUnavailable) -> None:
        """The stream with all its watches is gone."""


class Hub:
    """The connection of a process to one endpoint. Taken by ``acquire``, given by ``release``."""

    _all: ClassVar[dict[Endpoint, Hub]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def acquire(cls, endpoint: Endpoint) -> Hub:
        """The process's hub for this endpoint, made if there is none.

        Raises:
            StoreRefused: a TLS file cannot be read.
        """
        with cls._guard:
            hub = cls._all.get(endpoint)
            if hub is None:
                hub = cls._all[endpoint] = cls(endpoint)
            hub._users += 1
            return hub

    def release(self) -> None:
        """Closes the connection, if no other store uses it."""
        with self._guard:
            self._users -= 1
            if self._users:
                return
            del self._all[self.endpoint]
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._users = 0
        self.client = EtcdClient(endpoint)
        self.connected_once = False
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._watchers: dict[int, Watcher] = {}
        self._stream: _Stream | None = None
        self._thread = threads.spawn(self._run, name="etcd-hub")

    # ------------------------------------------------------------ the thread

    def post(self, call: Callable[[], None]) -> None:
        """Has ``call`` made on the hub's thread, after all that was posted before."""
        self._inbox.put(call)

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Has ``call`` made after ``delay`` seconds; from the hub's thread only."""
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._numbers), call))

    def _run(self) -> None:
        while True:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            try:
                call = self._inbox.get(timeout=timeout) if timeout != 0.0 else self._due()
            except queue.Empty:
                call = self._due()
            if call is None:
                break
            try:
                call()
            except Exception as error:
                # A store that has missed an event shows what is no longer so: its owner has to go.
                if not threads.report_crash(error):
                    _LOG.exception("an event of the store %s was not taken", self.endpoint)
        if self._stream is not None:
            self._stream.close()
        self.client.close()

    def _due(self) -> Callable[[], None]:
        return heapq.heappop(self._timers)[2]

    # ------------------------------------------------------------ watches (the hub's thread only)

    def watch(self, what: Range, revision: int, watcher: Watcher) -> int:
        """Watches a range from a revision on; 0: from now on.

        A watch that starts in the past, if only by one write, is served with a delay of up to
        100 ms (etcd catches up in the background).

        Returns:
            The number of the watch.
        """
        if self._stream is None:
            self._stream = _Stream(self)
        number = next(self._numbers)
        self._watchers[number] = watcher
        create = rpc.WatchCreateRequest(
            key=what.begin,
            range_end=what.end,
            start_revision=revision,
            progress_notify=True,
            watch_id=number,
        )
        self._stream.send(rpc.WatchRequest(create_request=create))
        return number

    def unwatch(self, number: int) -> None:
        """Ends a watch; no response of it is passed on from then on."""
        if self._watchers.pop(number, None) and self._stream is not None:
            cancel = rpc.WatchCancelRequest(watch_id=number)
            self._stream.send(rpc.WatchRequest(cancel_request=cancel))

    def _heard(self, stream: _Stream, response: rpc.WatchResponse) -> None:
        if stream is not self._stream:
            return
        watcher = self._watchers.get(response.watch_id)
        if watcher is not None:
            watcher.on_response(response.watch_id, response)
        elif response.canceled and response.watch_id == _NO_WATCH:
            stream.close()
            self._broken(stream, canceled(response, self.endpoint))

    def _broken(self, stream: _Stream, error: StoreUnavailable) -> None:
        if stream is not self._stream:
            return
        self._stream = None
        watchers, self._watchers = self._watchers, {}
        for watcher in dict.fromkeys(watchers.values()):
            watcher.broken(error)

    def ended(self, stream: _Stream, error: StoreUnavailable) -> None:
        """The stream is gone; from any thread."""
        self.post(lambda: self._broken(stream, error))

    def came(self, stream: _Stream, response: rpc.WatchResponse) -> None:
        """A response has come on the stream; from any thread."""
        self.post(lambda: self._heard(stream, response))


class _Stream:
    """One watch stream and the thread that reads it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._requests: queue.SimpleQueue[rpc.WatchRequest | None] = queue.SimpleQueue()
        self._call = hub.client.watch(iter(self._requests.get, None))
        threads.spawn(self._read, name="etcd-watch")

    def send(self, request: rpc.WatchRequest) -> None:
        self._requests.put(request)

    def close(self) -> None:
        self._call.cancel()

    def _read(self) -> None:
        end = StoreUnavailable(f"the store {self._hub.endpoint} has ended the watch")
        try:
            for response in self._call:
                self._hub.came(self, response)
        except StoreUnavailable as error:
            end = error
        self._requests.put(None)
        self._hub.ended(self, end)
