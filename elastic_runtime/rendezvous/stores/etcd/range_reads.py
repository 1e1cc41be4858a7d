"""Several ranges, read as of one moment without a transaction.

An etcd of 3.5.1, for one, ends with a panic if a transaction that only reads is given up by its
client, or its client dies, while it is served (etcd issue 14110): one node killed in the wrong
microsecond would take the store of all jobs with it. So the first range is read by itself, and
gives the revision at which the others are read.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.limits import ETCD_CALL_TIMEOUT
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.rendezvous.stores.etcd.etcd_client import EtcdClient

    Done = Callable[[Sequence[rpc.RangeResponse] | StoreUnavailable], None]


def read_later(
    client: EtcdClient,
    requests: Sequence[rpc.RangeRequest],
    done: Done,
    timeout: float = ETCD_CALL_TIMEOUT,
    *,
    patient: bool,
) -> None:
    """Reads ranges in the background, all as of one moment.

    Args:
        client: the connection.
        requests: the ranges, at least one; one with a revision of its own keeps it.
        done: gets the answers in their order, or the first error, on a thread of gRPC's; must not
            block.
        timeout: seconds for each.
        patient: wait for a connection, instead of failing while there is none.
    """

    def ask(
        request: rpc.RangeRequest, came: Callable[[rpc.RangeResponse | StoreUnavailable], None]
    ) -> None:
        client.range_later(request, came, timeout, patient)

    _Reading(requests, done, ask).begin()


class _Reading:
    """The reads of one moment."""

    def __init__(
        self,
        requests: Sequence[rpc.RangeRequest],
        done: Done,
        ask: Callable[
            [rpc.RangeRequest, Callable[[rpc.RangeResponse | StoreUnavailable], None]], None
        ],
    ) -> None:
        self._requests = requests
        self._done = done
        self._ask = ask
        self._answers: dict[int, rpc.RangeResponse] = {}
        self._over = False
        self._guard = threading.Lock()

    def begin(self) -> None:
        """Reads the first range, and then the others."""
        self._ask(self._requests[0], self._first_came)

    def _first_came(self, answer: rpc.RangeResponse | StoreUnavailable) -> None:
        self._came(0, answer)
        if isinstance(answer, StoreUnavailable):
            return
        for number, request in enumerate(self._requests[1:], start=1):
            then = rpc.RangeRequest()
            then.CopyFrom(request)
            then.revision = request.revision or answer.header.revision
            self._ask(then, partial(self._came, number))

    def _came(self, number: int, answer: rpc.RangeResponse | StoreUnavailable) -> None:
        with self._guard:
            if self._over:
                return
            if not isinstance(answer, StoreUnavailable):
                self._answers[number] = answer
                if len(self._answers) < len(self._requests):
                    return
            self._over = True
        if isinstance(answer, StoreUnavailable):
            self._done(answer)
        else:
            self._done([self._answers[one] for one in range(len(self._requests))])
