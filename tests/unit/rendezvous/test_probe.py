"""Probes: a node that lives says so, whatever happens to one answer or one client."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.rendezvous import probe as module
from elastic_runtime.rendezvous.probe import Prober, ProbeServer, ask, probe
from elastic_runtime.rendezvous.state import ALIVE, BUSY, OTHER, REFUSED, SILENT
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = "127.0.0.1"
PATIENCE = 10.0
FIELDS = {"node": "a", "name": "machine", "round": 7, "step": 100}


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer(LOCAL, lambda: dict(FIELDS))
    yield server
    server.close()


def _exchange(port: int, line: bytes) -> bytes:
    with socket.create_connection((LOCAL, port), timeout=PATIENCE) as client:
        client.sendall(line)
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_a_node_answers_until_it_ends() -> None:
    answer = {"node": "a", "busy": False}
    server = ProbeServer(LOCAL, lambda: answer)
    assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
    answer["busy"] = True
    assert probe("a", LOCAL, server.port, PATIENCE) == BUSY
    assert probe("b", LOCAL, server.port, PATIENCE) == OTHER
    server.close()
    assert probe("a", LOCAL, server.port, PATIENCE) == REFUSED


def test_an_answer_that_cannot_be_given_proves_nothing_and_is_not_the_last_one() -> None:
    answers = iter([{"node": "a"}])
    broken = [True]

    def answer() -> dict[str, Any]:
        if broken:
            broken.pop()
            raise ValueError("the workers are just being replaced")
        return next(answers)

    server = ProbeServer(LOCAL, answer)
    try:
        assert probe("a", LOCAL, server.port, PATIENCE) == SILENT
        assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
    finally:
        server.close()


def test_only_who_names_this_life_hears_how_far_it_has_come(server: ProbeServer) -> None:
    assert ask("a", LOCAL, server.port, PATIENCE) == FIELDS
    assert json.loads(_exchange(server.port, b'{"node": "b"}\n')) == {"node": ""}


@pytest.mark.parametrize(
    "line", [b'{"hello":"elastic"}\n', b"GET / HTTP/1.0\r\n\r\n", b'{"node": 3}\n', b"[1]\n", b"\n"]
)
def test_a_stranger_hears_nothing(server: ProbeServer, line: bytes) -> None:
    assert _exchange(server.port, line) == b""


def test_a_question_has_a_limit(server: ProbeServer) -> None:
    with socket.create_connection((LOCAL, server.port), timeout=PATIENCE) as client:
        try:
            client.sendall(b"x" * 1_000_000 + b"\n")
            assert client.recv(1) == b""
        except ConnectionError:
            pass  # it hung up while we still spoke
    assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE


def test_slow_clients_are_in_nobodys_way_and_have_one_deadline(server: ProbeServer) -> None:
    with socket.create_connection((LOCAL, server.port), timeout=PATIENCE) as slow:
        over = threading.Event()

        def drip() -> None:
            try:
                while not over.is_set():
                    slow.sendall(b"x")
                    over.wait(0.2)
            except OSError:
                pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
            # Each byte came in time; all of them together did not.
            try:
                assert slow.recv(1) == b""
            except ConnectionError:
                pass
        finally:
            over.set()
            thread.join()


def test_however_many_clients_hold_the_line_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_CLIENTS", 8)
    server = ProbeServer(LOCAL, lambda: {"node": "a"}, patience=600.0)
    held = [socket.create_connection((LOCAL, server.port), timeout=PATIENCE) for _ in range(40)]
    try:
        assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
    finally:
        for client in held:
            client.close()
        server.close()


class _Asked:
    """A prober, and what it has found."""

    def __init__(self, timeout: float = PATIENCE) -> None:
        self.found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.prober = Prober(timeout, lambda node, answer: self.found.put((node, answer)))
        self.prober.start()

    def close(self) -> None:
        self.prober.close()

    def next(self) -> tuple[str, str]:
        return self.found.get(timeout=PATIENCE)


def test_a_prober_finds_the_living_the_dead_and_the_others(server: ProbeServer) -> None:
    with socket.socket() as taken, closing(_Asked()) as asked:
        taken.bind((LOCAL, 0))  # and does not listen
        asked.prober.probe("a", "localhost", server.port)
        asked.prober.probe("b", LOCAL, server.port)
        asked.prober.probe("c", LOCAL, taken.getsockname()[1])
        asked.prober.probe("d", "no-such-host.invalid", 9)
        found = dict(asked.next() for _ in range(4))
    assert found == {"a": ALIVE, "b": OTHER, "c": REFUSED, "d": SILENT}


def test_a_prober_has_one_probe_of_a_node_under_way_and_no_thread_for_it() -> None:
    with socket.socket() as silent, closing(_Asked(0.5)) as asked:
        silent.bind((LOCAL, 0))
        silent.listen(600)
        port = silent.getsockname()[1]
        before = threading.active_count()
        for _ in range(5):
            for number in range(100):
                asked.prober.probe(f"n{number}", LOCAL, port)
        accepted = [silent.accept()[0] for _ in range(100)]
        assert threading.active_count() <= before
        found = [asked.next() for _ in range(100)]
        assert sorted(found) == sorted((f"n{number}", SILENT) for number in range(100))
        assert asked.found.empty()
        for connection in accepted:
            connection.close()


def test_a_prober_that_is_closed_leaves_nothing() -> None:
    before = {thread.name for thread in threading.enumerate()}
    asked = _Asked(600.0)
    with socket.socket() as silent:
        silent.bind((LOCAL, 0))
        silent.listen(1)
        asked.prober.probe("a", LOCAL, silent.getsockname()[1])
        silent.accept()[0].close()
        asked.close()
    asked.prober.probe("a", LOCAL, 1)  # comes to nothing
    deadline = time.monotonic() + PATIENCE
    wait_for(
        lambda: {thread.name for thread in threading.enumerate()} <= before,
        deadline - time.monotonic(),
        "the end of its thread",
    )
