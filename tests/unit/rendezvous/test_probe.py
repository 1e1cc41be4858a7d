"""Probes: a node that lives says so, whatever happens to one answer or one client."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROBES,
    PROOF,
    SNAPSHOTS,
    hello,
    new_nonce,
    new_secret,
)
from elastic_runtime.rendezvous import probe as module
from elastic_runtime.rendezvous.core.membership_events import ALIVE, BUSY, OTHER, REFUSED, SILENT
from elastic_runtime.rendezvous.probe import Prober, ProbeServer, ask_node, probe_node
from elastic_runtime.system.listening import BACKLOG
from tests.processes import wait_for
from tests.strangers import GARBAGE, Port, Recorder, says

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCAL = "127.0.0.1"
PATIENCE = 60.0
FIELDS = {"node": "a", "name": "machine", "round": 7, "step": 100}
SECRET = new_secret()


def _serving(answer: Callable[[], dict[str, Any]], **options: Any) -> ProbeServer:
    return ProbeServer(LOCAL, answer, lambda: SECRET, **options)


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = _serving(lambda: dict(FIELDS))
    yield server
    server.close()


@pytest.fixture
def recorder(server: ProbeServer) -> Iterator[Recorder]:
    with closing(Recorder(Port(LOCAL, server.port))) as recorder:
        assert ask_node("a", LOCAL, recorder.port, PATIENCE, SECRET) == FIELDS
        yield recorder


@contextmanager
def _port_of(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port at which somebody does this to whoever connects, and hangs up; once."""

    def accept() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            serve(client)

    with socket.create_server((LOCAL, 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(PATIENCE)


def _says(*said: bytes) -> AbstractContextManager[int]:
    """A port at which somebody says this, each after a word of the other side."""

    def serve(client: socket.socket) -> None:
        for one in said:
            client.sendall(one)
            client.recv(4096)

    return _port_of(serve)


def _probe(port: int, node: str = "a", secret: str = SECRET) -> str:
    return probe_node(node, LOCAL, port, PATIENCE, secret)


def test_a_node_answers_until_it_ends() -> None:
    answer = {"node": "a", "busy": False}
    server = _serving(lambda: answer)
    assert _probe(server.port) == ALIVE
    answer["busy"] = True
    assert _probe(server.port) == BUSY
    assert _probe(server.port, "b") == OTHER
    server.close()
    assert _probe(server.port) == REFUSED


def test_who_asks_at_the_last_moment_is_not_left_waiting() -> None:
    late: list[socket.socket] = []

    def end() -> dict[str, Any]:
        late.append(socket.create_connection((LOCAL, server.port), timeout=PATIENCE))
        with suppress(RuntimeError):  # its thread cannot wait for itself
            server.close()
        return dict(FIELDS)

    server = _serving(end)
    _probe(server.port)
    server.close()
    with late[0], suppress(ConnectionResetError):
        assert late[0].recv(1) == b""


def test_an_answer_that_cannot_be_given_proves_nothing_and_is_not_the_last_one() -> None:
    defects = [ValueError("the workers are just being replaced")]

    def answer() -> dict[str, Any]:
        if defects:
            raise defects.pop()
        return {"node": "a"}

    with closing(_serving(answer)) as server:
        assert _probe(server.port) == SILENT
        assert _probe(server.port) == ALIVE


def test_only_who_names_this_life_hears_how_far_it_has_come(server: ProbeServer) -> None:
    assert ask_node("a", LOCAL, server.port, PATIENCE, SECRET) == FIELDS
    assert ask_node("b", LOCAL, server.port, PATIENCE, SECRET) == {"node": ""}


# It takes any answer but its own for proof that the node is gone.
OF_A_VERSION_WITHOUT_SECRETS = b'{"hello": "elastic", "node": "a"}\n'
OF_STRANGERS = *GARBAGE, OF_A_VERSION_WITHOUT_SECRETS, hello(PROBES)[:-1]


@pytest.mark.parametrize("said", [*OF_STRANGERS, hello(SNAPSHOTS) + bytes(NONCE)])
def test_a_stranger_hears_nothing(server: ProbeServer, said: bytes) -> None:
    assert says(Port(LOCAL, server.port), said) == b""
    assert _probe(server.port) == ALIVE


@pytest.mark.parametrize("proof", [b"", b"x", bytes(PROOF) + b'{"node": "a"}\n'])
def test_who_cannot_prove_itself_hears_a_random_number(server: ProbeServer, proof: bytes) -> None:
    said = hello(PROBES) + new_nonce() + proof
    heard = [says(Port(LOCAL, server.port), said) for _ in range(2)]
    assert [len(one) for one in heard] == [NONCE, NONCE]
    assert heard[0] != heard[1]


@pytest.mark.parametrize("secret", ["f" * 64, ""])
def test_a_wrong_secret_opens_nothing_and_proves_nothing(secret: str) -> None:
    for its, ours in ((SECRET, secret), (secret, SECRET), ("", "")):
        server = ProbeServer(LOCAL, lambda: dict(FIELDS), lambda its=its: its)  # type: ignore[misc]
        with closing(server):
            assert _probe(server.port, "a", ours) == SILENT
            assert _probe(server.port, "b", ours) == SILENT
        assert _probe(server.port, "a", ours) == REFUSED


def test_a_question_that_was_overheard_is_worth_nothing(
    server: ProbeServer, recorder: Recorder
) -> None:
    assert len(says(Port(LOCAL, server.port), recorder.of_client)) == NONCE
    # Nor with what the server said then, as if both were still on that connection.
    assert says(Port(LOCAL, server.port), recorder.of_server) == b""


def test_an_answer_that_was_overheard_is_believed_by_nobody(recorder: Recorder) -> None:
    nonce, rest = recorder.of_server[:NONCE], recorder.of_server[NONCE:]
    with _says(nonce, rest) as port:
        assert _probe(port) == SILENT


def test_an_answer_that_was_changed_on_its_way_is_believed_by_nobody(server: ProbeServer) -> None:
    def meddle(client: socket.socket) -> None:
        with socket.create_connection((LOCAL, server.port), timeout=PATIENCE) as line:
            line.sendall(client.recv(4096))
            client.sendall(line.recv(NONCE, socket.MSG_WAITALL))
            line.sendall(client.recv(4096))
            proof = line.recv(PROOF, socket.MSG_WAITALL)
            client.sendall(proof + line.recv(4096).replace(b'"step": 100', b'"step": 900'))

    with _port_of(meddle) as port:
        assert _probe(port) == SILENT


def test_what_another_program_says_is_no_proof_of_a_death() -> None:
    with _says(b"220 mail.example.org ESMTP, at your service, with a long greeting\r\n") as port:
        assert _probe(port) == SILENT
    with _says(new_nonce(), new_nonce() + b'{"node": ""}\n') as port:
        assert _probe(port) == SILENT


def test_who_repeats_what_it_hears_is_not_taken_for_alive() -> None:
    def echo(client: socket.socket) -> None:
        for _ in range(2):
            client.sendall(client.recv(4096))

    with _port_of(echo) as port:
        assert _probe(port) == SILENT


def test_a_question_has_a_limit(server: ProbeServer) -> None:
    with socket.create_connection((LOCAL, server.port), timeout=PATIENCE) as client:
        with suppress(ConnectionError):  # it hung up while we still spoke
            client.sendall(b"x" * 1_000_000 + b"\n")
            while client.recv(4096):
                pass
    assert _probe(server.port) == ALIVE


def test_slow_clients_are_in_nobodys_way_and_have_one_deadline(server: ProbeServer) -> None:
    with socket.create_connection((LOCAL, server.port), timeout=PATIENCE) as slow:
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(0.2):
                    slow.sendall(b"x")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            assert _probe(server.port) == ALIVE
            # Each byte came in time; all of them together did not.
            with suppress(ConnectionError):
                assert slow.recv(1) == b""
        finally:
            over.set()
            thread.join()


def test_however_many_clients_hold_the_line_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_CLIENTS", 8)
    with ExitStack() as stack:
        server = stack.enter_context(closing(_serving(lambda: {"node": "a"}, patience=600.0)))
        for _ in range(40):
            where = LOCAL, server.port
            stack.enter_context(socket.create_connection(where, timeout=PATIENCE))
        assert _probe(server.port) == ALIVE


class _Asked:
    """A prober, and what it has found."""

    def __init__(self, timeout: float = PATIENCE) -> None:
        self.found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.prober = Prober(timeout, lambda node, answer: self.found.put((node, answer)))

    def close(self) -> None:
        self.prober.close()

    def next(self) -> tuple[str, str]:
        return self.found.get(timeout=PATIENCE)


def test_a_prober_finds_the_living_the_dead_and_the_others(server: ProbeServer) -> None:
    with socket.socket() as taken, closing(_Asked()) as asked:
        taken.bind((LOCAL, 0))  # and does not listen
        asked.prober.probe("a", "localhost", server.port, SECRET)
        asked.prober.probe("b", LOCAL, server.port, SECRET)
        asked.prober.probe("c", LOCAL, taken.getsockname()[1], SECRET)
        asked.prober.probe("d", "no-such-host.invalid", 9, SECRET)
        asked.prober.probe("e", "no..host", 9, SECRET)  # no name at all
        found = dict(asked.next() for _ in range(5))
    assert found == {"a": ALIVE, "b": OTHER, "c": REFUSED, "d": SILENT, "e": SILENT}


def test_hundreds_may_ask_in_the_same_moment(server: ProbeServer) -> None:
    assert ask_node("a", LOCAL, server.port, PATIENCE, SECRET) == FIELDS  # it serves
    # Of a socket that listens, Linux has the longest queue there, which asyncio sets anew.
    info = server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    (longest,) = struct.unpack_from("I", info, 28)
    assert longest == min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))


def test_a_prober_has_one_probe_of_a_node_under_way_and_no_thread_for_it() -> None:
    with socket.socket() as silent, closing(_Asked(0.5)) as asked:
        silent.bind((LOCAL, 0))
        silent.listen(600)
        port = silent.getsockname()[1]
        before = threading.active_count()
        for _ in range(5):
            for number in range(100):
                asked.prober.probe(f"n{number}", LOCAL, port, SECRET)
        accepted = [silent.accept()[0] for _ in range(100)]
        assert threading.active_count() <= before + 1  # its own, from the first probe on
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
        asked.prober.probe("a", LOCAL, silent.getsockname()[1], SECRET)
        silent.accept()[0].close()
        asked.close()
    asked.prober.probe("a", LOCAL, 1, SECRET)  # comes to nothing
    threads = threading.enumerate
    wait_for(lambda: {one.name for one in threads()} <= before, PATIENCE, "the end of its thread")
    found = [asked.found.get() for _ in range(asked.found.qsize())]
    assert ("a", REFUSED) not in found
