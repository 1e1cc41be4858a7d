"""Runs a job on the machines of a list: performs what ``host_plan`` decides."""

from __future__ import annotations

import queue
import resource
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.hosts.host_plan import (
    OF_THE_JOB,
    SSH_FAILED,
    Asked,
    AskNode,
    EndAll,
    Grow,
    KillNode,
    Listed,
    NodeEnded,
    PlanAction,
    PlanEvent,
    PlanState,
    StartNode,
    Tell,
    TimePassed,
    decide,
    next_moment,
)
from elastic_runtime.cli.hosts.ssh_node import SshNode
from elastic_runtime.errors import ElasticError
from elastic_runtime.reporting.console import open_consoles
from elastic_runtime.system import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_runtime.cli.hosts.host_source import HostSource
    from elastic_runtime.cli.hosts.listed_hosts import Host

# Of a terminal; a machine keeps its colour.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LONGEST_WAIT = 3600.0
_AGAIN = 1.0  # seconds
_HERE_EVERY = 5.0  # seconds; a fraction of ``remote_node.SILENCE``


def _allow_descriptors() -> None:
    """Each node takes some, and the usual 1,024 are too few for some hundred nodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class HostRunner:
    """One job on some machines.

    Args:
        source: the list of machines.
        ssh: the client, with options of the user's.
        order: what the far end on a machine is told, see ``remote_node``.
        plan: the state that the plan begins with.
        outcome: asks how the job has ended: its exit code; None: it has not, as far as is known.
        store_is_gone: asks whether the store of the job does not answer any more though it was
            hosted by this process at first.
        grow: has so many nodes train at most, as long as the list says that; raises ElasticError
            while that cannot be said. None: the bound is not for the list to say.
        only_events: each line of standard error is an event in JSON, and says itself whose it is.
    """

    def __init__(
        self,
        source: HostSource,
        ssh: Sequence[str],
        order: Callable[[Host], Mapping[str, Any]],
        plan: PlanState,
        outcome: Callable[[], int | None],
        store_is_gone: Callable[[], bool],
        grow: Callable[[int], object] | None,
        *,
        only_events: bool,
    ) -> None:
        self._source = source
        self._ssh = ssh
        self._order = order
        self._events: queue.SimpleQueue[PlanEvent] = queue.SimpleQueue()
        self._grow = grow
        self._outcome = outcome
        self._store_is_gone = store_is_gone
        self._state = plan
        self._ended = threading.Event()
        self._most = 0
        self._nodes: dict[str, SshNode] = {}
        self._colours: dict[str, int] = {}
        self._consoles = open_consoles(1, 2, lambda: None)
        self._consoles["stderr"].only_events = only_events
        self._code: int | None = None

    def run(self, hosts: tuple[Host, ...]) -> int:
        """Runs the job to its end. For the main thread only.

        Args:
            hosts: the machines that are listed at first.

        Returns:
            What the nodes have come to: the code of the job, if one of them knew it; ``AGAIN``.
        """
        self._most = len(hosts)
        _allow_descriptors()
        with self._signals():
            threads.spawn(self._say_here, name="ssh-here")
            self._source.follow(hosts, lambda found: self._events.put(Listed(found)), self._tell)
            try:
                self._take(Listed(hosts))
                while self._code is None:
                    self._take(self._next())
            finally:
                self._ended.set()
                self._source.close()
                for node in list(self._nodes.values()):
                    node.cut()
                for console in self._consoles.values():
                    console.close()
        return self._code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(signum: int, frame: Any) -> None:
            self._events.put(Asked(signum))

        before = {
            number: signal.signal(number, handle)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _next(self) -> PlanEvent:
        moment = next_moment(self._state)
        wait = _LONGEST_WAIT if moment is None else max(0.0, moment - time.monotonic())
        try:
            return self._events.get(timeout=min(wait, _LONGEST_WAIT))
        except queue.Empty:
            return TimePassed()

    def _take(self, event: PlanEvent) -> None:
        if isinstance(event, NodeEnded):
            self._nodes.pop(event.name, None)
            if event.began and event.code in OF_THE_JOB:
                event = replace(event, outcome=self._outcome())
            if event.began and not self._nodes and not self._state.over:
                event = replace(event, stranded=self._store_is_gone())
        self._state, actions = decide(self._state, event, time.monotonic())
        for action in actions:
            self._perform(action)

    def _perform(self, action: PlanAction) -> None:
        match action:
            case StartNode(host):
                self._start(host)
            case AskNode(name) if name in self._nodes:
                self._nodes[name].leave()
            case KillNode(name) if name in self._nodes:
                self._nodes[name].kill()
            case Grow(most):
                self._most = most
                threads.spawn(self._let_grow, most, name="host-bound")
            case Tell(text):
                self._tell(text)
            case EndAll(code):
                self._code = code

    def _start(self, host: Host) -> None:
        prefix, notify = self._prefix(host.name), self._events.put
        try:
            node = SshNode(host, self._ssh, self._order(host), prefix, self._consoles, notify)
        except OSError as error:
            self._tell(f"{host.name}: {self._ssh[0]} cannot be run: {error.strerror or error}")
            notify(NodeEnded(host.name, SSH_FAILED, 0.0, began=False))
            return
        self._nodes[host.name] = node

    def _say_here(self) -> None:
        while not self._ended.wait(_HERE_EVERY):
            for node in list(self._nodes.values()):
                node.say_here()

    def _let_grow(self, most: int) -> None:
        assert self._grow is not None
        while self._most == most and not self._ended.is_set():
            try:
                self._grow(most)
                return
            except ElasticError:  # no node has begun yet, or the store does not answer
                self._ended.wait(_AGAIN)

    def _tell(self, text: str) -> None:
        print(f"elastic-run: {text}", file=sys.stderr, flush=True)

    def _prefix(self, name: str) -> bytes:
        if not sys.stdout.isatty():
            return f"[{name}] ".encode()
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\033[{colour}m[{name}]\033[0m ".encode()
