"""The rendezvous store on etcd v3: what a node asks for, made of the parts beside this file.

``watch_view`` follows the keys and calls the listener, ``etcd_lease`` holds the node's lease from
its grant to its end, ``shared_connection`` is what the stores of a process share, ``etcd_client``
talks to etcd, ``etcd_keys`` says which key is where.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import TYPE_CHECKING, TypeVar

import tenacity

from elastic_runtime.defaults import STORE_TIMEOUT
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import LeaseLost, MainLoopSilent
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import access_refusal
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import (
    LeaseGone,
    RequestTooLarge,
    StoreFull,
    StoreRefused,
)
from elastic_runtime.rendezvous.stores.etcd.etcd_keys import RunKeys, took_effect, with_read_back
from elastic_runtime.rendezvous.stores.etcd.etcd_lease import NodeLease
from elastic_runtime.rendezvous.stores.etcd.shared_connection import Hub
from elastic_runtime.rendezvous.stores.etcd.watch_view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import Listener, StoreEntry, Transaction

_T = TypeVar("_T")

# Seconds for a blocking operation with its retries, and for giving the lease back at the end.
_OPERATION = STORE_TIMEOUT
_FAREWELL = 1.0
# To try again is of no use.
_FINAL = (StoreRefused, StoreFull, RequestTooLarge, MainLoopSilent)


class EtcdStore:
    """One node's view of the store of one run, on etcd v3; see ``store_contract.Store``.

    Args:
        endpoint: where etcd is.
        run_id: the run.
        lease_ttl: seconds, the lease to ask for; etcd grants whole seconds and may grant more.
        connect_timeout: seconds that a first blocking call may take, before there ever was a
            connection.

    Raises:
        StoreRefused: a TLS file cannot be read.
    """

    def __init__(
        self, endpoint: Endpoint, run_id: str, lease_ttl: float, connect_timeout: float
    ) -> None:
        self._endpoint = endpoint
        self._keys = RunKeys(endpoint.prefix, run_id)
        self._connect_timeout = connect_timeout
        self._hub = Hub.acquire(endpoint)
        self._lease = NodeLease(self._hub.client, math.ceil(lease_ttl), self._lease_lost)
        self._view = View(self._hub, self._keys, endpoint, lambda: self._lease.acked_at)
        self._closing = threading.Event()

    @property
    def granted_ttl(self) -> float:
        """Seconds, as last granted; 0 before there is a lease."""
        return self._lease.granted_ttl

    @property
    def hosted_here(self) -> bool:
        """Never: an etcd is a process of its own."""
        return False

    # ------------------------------------------------------------ what is followed

    def start(self, own_key: str, listener: Listener) -> None:
        """Connects in the background and begins to deliver events."""
        self._lease.beat()
        self._hub.post(lambda: self._view.start(own_key, listener))

    def follow(self, own_key: str) -> None:
        """Changes the own key and gives the old lease up; a ``StoreSnapshot`` follows."""
        self._lease.give_up()
        self._hub.post(lambda: self._view.change_scope(own=own_key))

    def look(self, wide: bool, without: frozenset[str]) -> None:
        """Changes what is followed; a ``StoreSnapshot`` follows."""
        self._hub.post(lambda: self._view.change_scope(wide=wide, without=without))

    def _lease_lost(self) -> None:
        self._hub.post(lambda: self._view.emit(LeaseLost(self._lease.acked_at)))

    # ------------------------------------------------------------ blocking operations

    def apply(self, transaction: Transaction) -> bool:
        """Performs a transaction; see ``Store.apply``.

        More than 128 writes are done in several steps: the conditions, the puts and the first
        deletes in one, the other deletes after it. If the store fails in between, a second
        ``apply`` finishes them.

        Raises:
            MainLoopSilent: it needs a lease, and there was no ``beat`` for one TTL.
            StoreUnavailable: no answer; it may have taken effect or not.
            StoreRefused: a kind of it; the store will never take us.
            ValueError: more than 128 puts or conditions, or a key written twice.
        """
        leased = any(put.leased for put in transaction.puts)
        doubt = False

        def conditional() -> bool:
            nonlocal doubt
            lease = self._lease.number() if leased else 0
            request = self._keys.writes(transaction, lease)[0]
            before = self._view.revision
            try:
                answer = self._hub.client.txn(with_read_back(request) if doubt else request)
            except LeaseGone:
                self._lease.drop(lease)
                raise
            except StoreUnavailable:
                doubt = True
                raise
            self._hub.post(lambda: self._view.answered(answer.header.revision, before))
            return answer.succeeded or (doubt and took_effect(request, answer))

        rest = self._keys.writes(transaction, 0)[1:]
        if not self._insist(conditional):
            return False
        for request in rest:
            self._insist(functools.partial(self._hub.client.txn, request))
        return True

    def beat(self) -> None:
        """Says that the agent's main loop runs."""
        self._lease.beat()

    def read(self, prefix: str) -> tuple[StoreEntry, ...]:
        """All entries under a prefix, in order of creation; see ``Store.read``."""
        span = self._keys.under(prefix)
        request = rpc.RangeRequest(
            key=span.begin,
            range_end=span.end,
            sort_order=rpc.RangeRequest.ASCEND,
            sort_target=rpc.RangeRequest.CREATE,
        )
        answer = self._insist(lambda: self._hub.client.range(request))
        return tuple(self._keys.entry(kv) for kv in answer.kvs)

    def _insist(self, call: Callable[[], _T]) -> _T:
        """Makes a call that may be repeated until it is answered, within a deadline."""
        limit = _OPERATION if self._hub.connected_once else self._connect_timeout
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, StoreUnavailable) and not isinstance(e, _FINAL)
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=0.5),
            stop=tenacity.stop_after_delay(limit) | tenacity.stop_when_event_set(self._closing),
            sleep=tenacity.sleep_using_event(self._closing),
            reraise=True,
        )
        result: _T = retrying(self._diagnosed, call)
        return result

    def _diagnosed(self, call: Callable[[], _T]) -> _T:
        try:
            result = call()
        except StoreUnavailable as error:
            if not self._hub.connected_once and (why := access_refusal(self._endpoint)):
                raise StoreRefused(why) from error
            raise
        self._hub.connected_once = True
        return result

    def close(self) -> None:
        """Gives the lease back and stops. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._hub.post(self._view.stop)
        self._lease.give_back(_FAREWELL)
        self._hub.release()
