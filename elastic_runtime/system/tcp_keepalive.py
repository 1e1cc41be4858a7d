"""Connections between ranks that notice when the network between them is cut.

Linux gives up a connection over which nothing comes back after some 15 minutes, or never if
nothing is sent; gloo and NCCL wait as long. With these options it is lost after about as long as a
node's lease: a silent peer is asked each few seconds, and what is sent is acknowledged in time or
the connection ends. A cut that heals before that costs nothing but the pause until TCP's next
attempt: a second where the kernel can be set so, else at most as long as the cut was.

Only connections that are made while a process group is built are touched, and later ones of NCCL
to the same hosts. Which of them are gloo's is known, so that what other threads of the script
connect meanwhile is left alone; NCCL's are distinguished from those by their hosts only, and not at
all while a group is built that has no gloo.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.system import torch_private
from elastic_runtime.system.tcp_connections import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from elastic_runtime.system.tcp_connections import TcpConnection

# Seconds after which a silent peer is lost; 0: as the system has it. The agent sets it to the time
# of its lease, unless it is set already.
ENV_PEER_TIMEOUT = "ELASTIC_PEER_TIMEOUT"

# The longest pause between two attempts to send the same again, in milliseconds: without it the
# pauses double, and a cut that heals is noticed only after about its own length once more.
_TCP_RTO_MAX_MS = 44
_LONGEST_PAUSE = 1000

# When connections are looked at again, in seconds after a group was made: NCCL makes its own with
# the first collectives.
_LATER = (5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True)
class Options:
    """What is set on a connection.

    Attributes:
        idle: seconds without a packet before the peer is asked.
        interval: seconds between questions.
        count: unanswered questions that end it, where ``patience`` does not.
        patience: milliseconds until it ends with anything unanswered.
    """

    idle: int
    interval: int
    count: int
    patience: int


def options(seconds: float) -> Options | None:
    """What makes a connection end so long after its peer fell silent; None to leave it alone.

    Args:
        seconds: at least 2 are taken: one each for silence and an answer.
    """
    if not 0 < seconds < 86400:
        return None
    seconds = max(2.0, seconds)
    pace = max(1, round(seconds / 5))
    return Options(pace, pace, max(1, round(seconds / pace) - 1), round(1000 * seconds))


def tend(one: TcpConnection, wanted: Options) -> None:
    """Sets the options on a connection.

    Raises:
        OSError: it is gone.
    """
    one.set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.set(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, wanted.idle)
    one.set(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, wanted.interval)
    one.set(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, wanted.count)
    one.set(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wanted.patience)
    with suppress(OSError):  # Linux 6.15 and later
        one.set(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE)


@contextmanager
def tended() -> Iterator[None]:
    """Tends the connections that this process makes within the block: while a group is built."""
    wanted = options(_asked_for())
    if wanted is None:
        yield
        return
    listeners: list[bytes] = []

    def build(make: Callable[[], list[bytes]]) -> list[bytes]:
        found = make()
        listeners.extend(found)
        return found

    before = _to_others()
    with torch_private.gloo_built_by(build):
        yield
    new = _to_others() - before
    if listeners:
        new = {one for one in new if one.meets(listeners)}
    _tend_all(new, wanted)
    hosts = {each.host for each in new}
    if hosts and _uses_gpu():
        _look_later(hosts, wanted)


def tend_new(connected: Collection[TcpConnection]) -> None:
    """Tends connections between ranks that were made for a group that was there before.

    Args:
        connected: those of the group.
    """
    wanted = options(_asked_for())
    others = {each for each in connected if each.host != each.here}
    if wanted is None or not others:
        return
    _tend_all(others, wanted)
    if _uses_gpu():
        _look_later({each.host for each in others}, wanted)


def _asked_for() -> float:
    try:
        return float(os.environ.get(ENV_PEER_TIMEOUT, "0"))
    except ValueError:
        return 0.0


def _uses_gpu() -> bool:
    import torch

    # Not whether there is one: to ask that would touch the driver, which no fork outlives.
    return bool(torch.cuda.is_initialized())


def _look_later(hosts: set[str], wanted: Options) -> None:
    threading.Thread(
        target=_look_again, args=(hosts, wanted), name="elastic-keepalive", daemon=True
    ).start()


def _look_again(hosts: set[str], wanted: Options) -> None:
    passed = 0.0
    for moment in _LATER:
        threading.Event().wait(moment - passed)
        passed = moment
        _tend_all({each for each in _to_others() if each.host in hosts}, wanted)


def _tend_all(found: set[TcpConnection], wanted: Options) -> None:
    for each in found:
        with suppress(OSError):
            tend(each, wanted)


def _to_others() -> set[TcpConnection]:
    """The connections of this process to other hosts."""
    return {each for each in connections() if each.host != each.here}
