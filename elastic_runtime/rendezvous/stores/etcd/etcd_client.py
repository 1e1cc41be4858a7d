"""A thin client of etcd's v3 API: the few calls that we make, and typed errors.

It keeps nothing but the channels and the auth token. Each server has a channel of its own, so that
names are looked up again and certificates are checked against the name of the very server (a
channel to several addresses has one name for all); one is used until it fails, then the next.

Retries are left to callers, which know what is safe to repeat; only a call that was turned away for
its token is made again here, as it had no effect.

A process that has a channel must not be forked: the child would hang in it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import ssl
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.limits import ETCD_CALL_TIMEOUT, MAX_UNANSWERED_CALLS

# gRPC would write lines of its own between ours for each handshake that fails.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from elastic_runtime.errors import StoreUnavailable, UsageError
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc
from elastic_runtime.rendezvous.stores.etcd.connection_diagnosis import tls_context
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import (
    AuthenticationOff,
    EtcdTimeout,
    LeaseGone,
    NoEtcd,
    NoLeader,
    StoreRefused,
    TokenRejected,
    as_store_error,
    no_etcd,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.config import Endpoint, Tls


_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This one is the time that an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A silent server is noticed by pings. etcd closes the connection of a client that pings more
    # often than every 5 s.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    # A wide look at hundreds of nodes with tracebacks is larger than the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # A channel that replaces another one must not find its connection again.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy for the web is no way to a store inside the cluster.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)


# After these another member may do better.
_ELSEWHERE = (StoreUnavailable, EtcdTimeout, NoLeader, NoEtcd)


class _HostChannel:
    """A channel to one host with the calls that we make on it.

    Attributes:
        host: as in the endpoint.
        not_etcd: the last answer from there showed that it is no etcd.
    """

    def __init__(self, host: str, credentials: Any) -> None:
        self.host = host
        self.not_etcd = False
        self._target, self._credentials = _target(host), credentials
        self._guard = threading.Lock()
        self._silent = 0
        self._closed = False
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._build()

    def _build(self) -> None:
        if self._credentials is None:
            self.channel = grpc.insecure_channel(self._target, _OPTIONS)
        else:
            self.channel = grpc.secure_channel(self._target, self._credentials, _OPTIONS)
        self.txn = self._unary("KV/Txn", rpc.TxnResponse)
        self.range = self._unary("KV/Range", rpc.RangeResponse)
        self.grant = self._unary("Lease/LeaseGrant", rpc.LeaseGrantResponse)
        self.revoke = self._unary("Lease/LeaseRevoke", rpc.LeaseRevokeResponse)
        # A stream of one question and one answer, which on the wire is the same as a call.
        self.keep_alive = self._unary("Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse)
        self.authenticate = self._unary("Auth/Authenticate", rpc.AuthenticateResponse)
        self.watch = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=_serialize,
            response_deserializer=rpc.WatchResponse.FromString,
        )

    def answered(self) -> None:
        """A call has ended in a way that shows a server at the other end."""
        self._silent = 0
        self.not_etcd = False

    def unanswered(self) -> None:
        """A call ran out of time. After a few in a row the connection is given up for a new one.

        gRPC keeps a connection that opened and on which pings are answered, as by a proxy whose
        backend has gone; a new connection may come to one that works.
        """
        with self._guard:
            self._silent += 1
            if self._silent < MAX_UNANSWERED_CALLS or self._closed:
                return
            self._silent = 0
            streams, self.streams = self.streams, weakref.WeakSet()
            self._build()
        # Calls run out of time by themselves, and the channel goes with the last of them; gRPC
        # does not tell the owners of calls that end because a channel is closed.
        for stream in streams:
            stream.cancel()

    def close(self) -> None:
        """Ends all calls and the connection."""
        with self._guard:
            self._closed = True
        self.channel.close()

    def _unary(self, method: str, answer: Any) -> Any:
        return self.channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=_serialize,
            response_deserializer=answer.FromString,
        )


class EtcdClient:
    """Talks to one etcd, of one or more members. Thread-safe.

    Args:
        endpoint: where it is, and how to sign in.

    Raises:
        StoreRefused: a TLS file cannot be read.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token = ""
        self._signed_in = not endpoint.user
        self._signing_in = threading.Lock()
        credentials = _credentials(endpoint.tls) if endpoint.secure else None
        self._channels = [_HostChannel(host, credentials) for host in endpoint.hosts]
        self._channel = random.choice(self._channels)

    # ------------------------------------------------------------ blocking calls

    def txn(self, request: rpc.TxnRequest, timeout: float = ETCD_CALL_TIMEOUT) -> rpc.TxnResponse:
        """Performs a transaction; one that fails may have taken effect.

        Raises:
            StoreUnavailable: no answer, or one of its kinds above.
        """
        answer: rpc.TxnResponse = self._call("txn", request, timeout)
        return answer

    def range(
        self, request: rpc.RangeRequest, timeout: float = ETCD_CALL_TIMEOUT
    ) -> rpc.RangeResponse:
        """Reads a range, linearizably. Raises as ``txn``."""
        answer: rpc.RangeResponse = self._call("range", request, timeout)
        return answer

    def grant(self, ttl: int, timeout: float = ETCD_CALL_TIMEOUT) -> tuple[int, int]:
        """Takes a lease of about ``ttl`` seconds: its id and the TTL granted. Raises as ``txn``."""
        answer = self._call("grant", rpc.LeaseGrantRequest(TTL=ttl), timeout)
        return answer.ID, answer.TTL

    def revoke(self, lease: int, timeout: float = ETCD_CALL_TIMEOUT) -> None:
        """Ends a lease; its keys vanish. Raises as ``txn``; a lease unknown is no error."""
        try:
            self._call("revoke", rpc.LeaseRevokeRequest(ID=lease), timeout)
        except LeaseGone:
            return

    def sign_in(self, timeout: float = ETCD_CALL_TIMEOUT) -> None:
        """Gets a token, unless there is one. Raises as ``txn``."""
        endpoint = self._endpoint
        with self._signing_in:
            if self._signed_in:
                return
            request = rpc.AuthenticateRequest(name=endpoint.user, password=endpoint.password)
            try:
                self._token = self._once("authenticate", request, timeout).token
            except AuthenticationOff:
                self._token = ""
            self._signed_in = True

    def sign_out(self) -> None:
        """Drops a token that the store no longer accepts."""
        self._token = ""
        self._signed_in = not self._endpoint.user

    def _call(self, method: str, request: Any, timeout: float) -> Any:
        self.sign_in(timeout)
        try:
            return self._once(method, request, timeout)
        except TokenRejected:
            self.sign_out()
            self.sign_in(timeout)
            return self._once(method, request, timeout)

    def _once(self, method: str, request: Any, timeout: float) -> Any:
        channel = self._channel
        try:
            answer = getattr(channel, method)(request, timeout=timeout, metadata=self._metadata())
            channel.answered()
            return answer
        except grpc.RpcError as error:
            raise self._failure(error, channel) from None
        except ValueError:
            raise self._closed() from None

    def _failure(self, error: grpc.RpcError, channel: _HostChannel) -> StoreUnavailable:
        found = as_store_error(error, self._endpoint)
        if isinstance(found, EtcdTimeout):
            channel.unanswered()
        if isinstance(found, NoEtcd):
            channel.not_etcd = True
            # One host that is wrong is no reason to give up the others.
            every = all(one.not_etcd for one in self._channels)
            where = ", ".join(one.host for one in self._channels) if every else channel.host
            found = (StoreRefused if every else NoEtcd)(no_etcd(where))
        if type(found) in _ELSEWHERE and channel is self._channel:
            self._channel = self._channels[
                (self._channels.index(channel) + 1) % len(self._channels)
            ]
        return found

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"the connection to {self._endpoint} is closed")

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    # ------------------------------------------------------------ calls that do not block

    def range_later(
        self,
        request: rpc.RangeRequest,
        done: Callable[[rpc.RangeResponse | StoreUnavailable], None],
        timeout: float,
        patient: bool,
    ) -> None:
        """Reads a range in the background, linearizably.

        Args:
            request: the range.
            done: gets the answer or the error, on a thread of gRPC's; must not block.
            timeout: seconds.
            patient: wait for a connection, instead of failing while there is none.
        """
        self._later("range", request, done, timeout, patient)

    def keep_alive(self, lease: int, done: Callable[[int | StoreUnavailable], None]) -> None:
        """Renews a lease in the background; ``done`` gets the TTL now granted, or the error."""

        def answered(answer: rpc.LeaseKeepAliveResponse | StoreUnavailable) -> None:
            done(answer if isinstance(answer, StoreUnavailable) else answer.TTL)

        request = rpc.LeaseKeepAliveRequest(ID=lease)
        self._later("keep_alive", request, answered, ETCD_CALL_TIMEOUT, False)

    def revoke_later(self, lease: int) -> None:
        """Ends a lease in the background, if the store can be reached."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        self._later("revoke", request, lambda _: None, ETCD_CALL_TIMEOUT, True)

    def _later(
        self, method: str, request: Any, done: Callable[[Any], None], timeout: float, patient: bool
    ) -> None:
        channel = self._channel
        # With several servers it is better to ask the next one than to wait for this one.
        patient = patient and len(self._channels) == 1

        def answered(future: Any) -> None:
            try:
                answer = future.result()
                channel.answered()
            except grpc.RpcError as error:
                answer = self._failure(error, channel)
            except grpc.FutureCancelledError:
                answer = self._closed()
            done(answer)

        try:
            future = getattr(channel, method).future(
                request, timeout=timeout, metadata=self._metadata(), wait_for_ready=patient
            )
        except ValueError:
            done(self._closed())
            return
        future.add_done_callback(answered)

    # ------------------------------------------------------------ watching

    def watch(self, requests: Iterator[rpc.WatchRequest]) -> WatchCall:
        """Opens a stream of watches; it ends when the member that serves it has lost its leader."""
        channel = self._channel
        call = channel.watch(requests, metadata=(*self._metadata(), ("hasleader", "true")))
        channel.streams.add(call)
        return WatchCall(call, lambda error: self._failure(error, channel))

    def close(self) -> None:
        """Ends all calls and the connections."""
        for channel in self._channels:
            channel.close()


class WatchCall:
    """An open stream of watches.

    Args:
        call: gRPC's.
        failure: turns an error of gRPC's into one of ours.
    """

    def __init__(self, call: Any, failure: Callable[[grpc.RpcError], StoreUnavailable]) -> None:
        self._call = call
        self._failure = failure

    def __iter__(self) -> Iterator[rpc.WatchResponse]:
        """The responses as they come.

        Raises:
            StoreUnavailable: the stream has broken.
        """
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def cancel(self) -> None:
        """Ends the stream; from any thread."""
        self._call.cancel()


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _credentials(tls: Tls) -> Any:
    def content(path: str) -> bytes | None:
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise UsageError(f"the TLS file {path} cannot be read: {error.strerror}") from None

    ca, key, cert = content(tls.ca), content(tls.key), content(tls.cert)
    try:
        tls_context(tls)
    except ssl.SSLError as error:
        names = ", ".join(path for path in (tls.ca, tls.cert, tls.key) if path)
        why = (error.reason or str(error)).replace("_", " ").lower()
        raise UsageError(f"the TLS files cannot be used ({names}): {why}") from None
    return grpc.ssl_channel_credentials(ca, key, cert)


def _target(host: str) -> str:
    """The host in gRPC's spelling."""
    try:
        version = ipaddress.ip_address(host.rpartition(":")[0].strip("[]")).version
    except ValueError:
        return f"dns:///{host}"
    return f"ipv{version}:{host}"
