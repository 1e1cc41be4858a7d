"""What etcd's answers mean for us: each error a class, and a message that says what to do.

gRPC hands over a code and a text; the text is etcd's own, and only it tells the causes apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from elastic_runtime.errors import EXIT_STORE_UNREACHABLE, StoreUnavailable

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc


class StoreRefused(StoreUnavailable):
    """The store will never take us; trying again is of no use."""

    exit_code = EXIT_STORE_UNREACHABLE


class NoEtcd(StoreUnavailable):
    """What listens there is no etcd. Another host of the endpoint may be one."""


class StoreFull(StoreUnavailable):
    """The store is full, and takes no writes until space is freed. The call had no effect."""


class RequestTooLarge(StoreUnavailable):
    """The store takes no request of this size. The call had no effect."""


class NoLeader(StoreUnavailable):
    """So many of the store's members are away that it can agree on nothing."""


class EtcdTimeout(StoreUnavailable):
    """A call ran out of time."""


class TokenRejected(StoreUnavailable):
    """The auth token is not valid, or no longer: sign in again. The call had no effect."""


class LeaseGone(StoreUnavailable):
    """The store knows no such lease. The call had no effect."""


class AuthenticationOff(StoreUnavailable):
    """The store works without passwords."""


class HistoryGone(StoreUnavailable):
    """A revision that was asked for is compacted away. The call had no effect."""


class HistoryUnknown(StoreUnavailable):
    """A revision that was asked for does not exist yet: the store has lost its data."""


_BY_DETAILS: tuple[tuple[str, type[StoreUnavailable]], ...] = (
    ("requested lease not found", LeaseGone),
    ("has been compacted", HistoryGone),
    ("is a future revision", HistoryUnknown),
    ("authentication is not enabled", AuthenticationOff),
    ("invalid auth token", TokenRejected),
    ("revision of auth store is old", TokenRejected),
    ("invalid user ID or password", StoreRefused),
    ("user name is empty", StoreRefused),
    ("permission denied", StoreRefused),
    ("database space exceeded", StoreFull),
    ("request is too large", RequestTooLarge),
    ("no leader", NoLeader),
)
# What to do about it, for people.
_REMEDIES: dict[type[StoreUnavailable], str] = {
    StoreFull: "its disk quota is used up: compact and defragment it, then etcdctl alarm disarm",
    RequestTooLarge: "let it take larger ones: --max-request-bytes",
    NoLeader: "most of its members are away: start them again",
}


def as_store_error(error: grpc.RpcError, where: Endpoint) -> StoreUnavailable:
    """What an error of gRPC's means for us.

    Args:
        error: as raised by, or taken from, a call.
        where: the endpoint it was made to.
    """
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return NoEtcd(no_etcd(str(where)))
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return EtcdTimeout(f"the store {where} did not answer in time")
    known = _complaint(details, where)
    if known is not None:
        return known
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return TokenRejected(f"the store {where} answers: {details}")
    # gRPC names the whole chain of causes; the first cause comes last.
    cause = details.rpartition(": ")[2].strip("[]. ") or code
    return StoreUnavailable(f"the store {where} cannot be reached: {cause}")


def canceled(response: rpc.WatchResponse, where: Endpoint) -> StoreUnavailable:
    """Why the server has ended a watch."""
    reason = response.cancel_reason
    other = StoreUnavailable(f"the store {where} has ended a watch: {reason}")
    return _complaint(reason, where) or other


def no_etcd(where: str) -> str:
    return f"what listens at {where} does not speak etcd's v3 API"


def _access(where: Endpoint) -> str:
    """The user and prefix of this endpoint, for a message that access was refused."""
    if not where.password:
        return f"user {where.user!r} without a password: give --etcd-password-file"
    return f"user {where.user!r}, prefix /{where.prefix}"


def _complaint(text: str, where: Endpoint) -> StoreUnavailable | None:
    """The error that a message of etcd's stands for; None if it is none of those we know."""
    for words, cls in _BY_DETAILS:
        if words in text:
            if cls is StoreRefused and not where.user:
                return cls(f"the store {where} asks for a user: name one with --etcd-user")
            said = text.rpartition("etcdserver: ")[2]
            return cls(
                f"the store {where} answers: {said} ({_REMEDIES.get(cls) or _access(where)})"
            )
    return None
