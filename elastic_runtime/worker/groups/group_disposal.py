"""Drops process groups in the background, so that training never waits for it.

The end of a gloo group waits for its threads. A thread that is just releasing its last collective
waits for Python's lock, and the thread that ends the group may have that lock: then the process
never ends (seen with torch 2.13, once in six ends of a ``DDP`` right after a backward pass).
And if a peer died in an unlucky microsecond, gloo has lost the error: its thread waits until the
group's time-out, and so does the thread that drops the last reference. That must not be a thread
that is needed.
"""

from __future__ import annotations

import atexit
import gc
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from elastic_runtime.limits import DROP_GROUPS_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_runtime.system.tcp_connections import TcpConnection

# How long after its last collective a group is dropped: so many sleeps of so many seconds, each of
# which has ended in time. One that has not says that the machine did not run us for a while, nor
# perhaps the group's threads. After the last number of seconds that no longer counts.
_RESTS = 10
_REST = 0.025
_LONGEST_REST = 3.0
# Seconds between two checks whether something still refers to a group that has ended.
_LOOK = 0.25
# A group may be referred to by garbage that is not collected yet, such as a ``DDP`` or an error.
# Python collects it by itself, but only when there is much of it. If this many groups are kept,
# each with three threads and some sockets, it is collected here, and not again for some seconds.
_MANY = 12
_COLLECT_EVERY = 10.0

# Groups that have ended, until nothing else refers to them.
_kept: list[Any] = []
_keeping = threading.RLock()
_background: list[threading.Thread] = []
_ending = threading.Event()
# References to what is in a list while its references are counted: the list's, and the counter's.
_OURS = 2


def drop_later(groups: list[Any], sockets: Collection[TcpConnection] = ()) -> None:
    """Drops process groups when their threads are certainly idle and nothing else refers to them.

    A process whose groups outlive it aborts now and then; so its end waits for this, though not
    for ever.

    Args:
        groups: all of a round; the list is emptied.
        sockets: of the groups.
    """
    ended = list(groups)
    groups.clear()
    _in_background("elastic-rest", lambda: _rest_and_keep(ended, sockets))


def _in_background(name: str, work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    with _keeping:
        _background[:] = [*(one for one in _background if one.is_alive()), thread]


def _rest_and_keep(ended: list[Any], sockets: Collection[TcpConnection]) -> None:
    rest()
    for one in sockets:
        one.shut(socket.SHUT_RDWR)
    with _keeping:
        watched = bool(_kept)
        _kept.extend(ended)
    ended.clear()
    if _ending.is_set():
        _kept.clear()
    elif not watched:
        _in_background("elastic-drop", _drop_what_is_loose)


def _drop_what_is_loose() -> None:
    """Ends when nothing is kept."""
    collected = float("-inf")
    while True:
        if len(_kept) > _MANY and time.monotonic() > collected + _COLLECT_EVERY:
            gc.collect()
            collected = time.monotonic()
        loose = [n for n in range(len(_kept)) if sys.getrefcount(_kept[n]) <= _OURS]
        # A ``DDP`` refers to its group until it is collected as garbage, and its reducer does for a
        # moment longer, where Python does not see it.
        time.sleep(_REST)
        if _ending.is_set():
            _kept.clear()
        with _keeping:
            for number in reversed(loose if _kept else []):
                _in_background("elastic-drop", [_kept.pop(number)].clear)
            if not _kept:
                return
        _ending.wait(_LOOK)


def rest(sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits until every thread that was ready to run when this began has certainly run.

    Args:
        sleep: takes seconds, and returns a while after them.
    """
    begun = woken = time.monotonic()
    rested = 0
    while rested < _RESTS and woken < begun + _LONGEST_REST:
        before = woken
        sleep(_REST)
        woken = time.monotonic()
        rested += woken < before + 2 * _REST


@atexit.register
def _await_drops() -> None:
    deadline = time.monotonic() + DROP_GROUPS_TIMEOUT
    _ending.set()
    for one in _background:
        one.join(max(0.0, deadline - time.monotonic()))
