"""What may befall a TCPStore and its clients, beyond the contract that all stores share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from elastic_runtime.config import Endpoint
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.store_contract import (
    ABSENT,
    Found,
    LeaseLost,
    Lost,
    Snapshot,
)
from elastic_runtime.rendezvous.stores.c10d import link
from elastic_runtime.rendezvous.stores.c10d.c10d_adapter import C10dStore
from elastic_runtime.rendezvous.stores.c10d.link import ANSWER, Link, listening_address
from elastic_runtime.rendezvous.stores.c10d.run_cells import Run
from tests import processes
from tests.conformance.listening import Ear
from tests.conformance.store_contract import Node
from tests.etcd_server import free_port
from tests.integration.c10d.hosting import HostProcess

OpenAt = Callable[..., Node]


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    host = HostProcess()
    yield host
    host.kill()


@pytest.fixture
def open_at(run_id: str) -> Iterator[OpenAt]:
    with ExitStack() as stack:

        def open_it(port: int, name: str, ttl: float = 5.0, may_host: bool = False) -> Node:
            endpoint = Endpoint("c10d", (f"127.0.0.1:{port}",), hosted_here=not may_host)
            store = C10dStore(endpoint, run_id, ttl)
            stack.callback(store.close)
            node = Node(f"nodes/{name}", store, Ear())
            store.start(node.key, node.ear)
            return node

        yield open_it


def hosting(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if isinstance(node.store, C10dStore) and node.store.hosting]


def test_of_several_on_one_machine_one_becomes_the_host(open_at: OpenAt) -> None:
    port = free_port()
    nodes = [open_at(port, f"n{i}", may_host=True) for i in range(5)]
    for node in nodes:
        node.ear.hears(Snapshot)
    assert len(hosting(nodes)) == 1
    nodes[0].put("job", b"j")
    for node in nodes:
        node.ear.has("job", b"j")


def test_when_the_host_dies_another_takes_over_with_an_empty_store(open_at: OpenAt) -> None:
    dying = HostProcess(free_port())
    nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(3)]
    for node in nodes:
        node.ear.hears(Snapshot)
        node.register()
    assert hosting(nodes) == []
    dying.kill()
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "that it forgot")
        node.ear.hears(Lost)
        node.ear.hears(Found)
    assert len(hosting(nodes)) == 1
    for node in nodes:
        node.register(b"again")
    assert len(nodes[0].store.read("")) == 3


def test_who_must_not_host_waits_for_the_host_to_come_back(open_at: OpenAt) -> None:
    port = free_port()
    node = open_at(port, "n")
    node.ear.hears(Lost)
    with HostProcessAt(port):
        node.ear.hears(Snapshot)
        assert not node.ear.last_snapshot().forgot
        node.register()


class HostProcessAt:
    """A host for a block."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __enter__(self) -> None:
        self._host = HostProcess(self._port)

    def __exit__(self, *error: object) -> None:
        self._host.kill()


def test_a_stopped_host_holds_nobody_for_ever(host: HostProcess, open_at: OpenAt) -> None:
    node, other, leaving = (open_at(host.port, name) for name in ("a", "b", "c"))
    for each in (node, other, leaving):
        each.ear.hears(Snapshot)
        each.register()
    host.pause()
    with pytest.raises(StoreUnavailable):
        node.put("job", b"j")
    node.ear.hears(Lost)
    begun = time.monotonic()
    leaving.store.close()
    assert time.monotonic() - begun < ANSWER
    with pytest.raises(StoreUnavailable):
        node.put("job", b"j")
    host.unpause()
    for each in (node, other):
        each.ear.hears(Found)
        each.ear.has(each.key)
        assert not each.ear.was_forgotten()
    # Whoever was silent only because the host was is not blamed.
    assert other.ear.count(LeaseLost) == 0
    node.put("job", b"k")
    other.ear.has("job", b"k")


def test_a_change_whose_writer_died_before_announcing_it_is_found(
    host: HostProcess, open_at: OpenAt, run_id: str
) -> None:
    node = open_at(host.port, "a", ttl=1.0)
    node.ear.hears(Snapshot)
    link = Link("127.0.0.1", host.port)
    Run(link, run_id).put("switch", b"unannounced", ABSENT)
    node.ear.has("switch", b"unannounced")
    link.cut()


def test_an_announcement_that_was_begun_and_never_made_stops_nobody(
    host: HostProcess, open_at: OpenAt, run_id: str
) -> None:
    node, writer = open_at(host.port, "a", ttl=60.0), open_at(host.port, "b", ttl=60.0)
    for each in (node, writer):
        each.ear.hears(Snapshot)
    link = Link("127.0.0.1", host.port)
    run = Run(link, run_id)
    link.add(f"elastic/run/{run_id}/common", 1)
    link.add(f"elastic/run/{run_id}/index", 1)
    writer.put("job", b"j")
    run.common_log.fill(1)  # as every node does when it looks again
    node.ear.has("job", b"j")
    writer.register()
    assert writer.key in run.nodes()
    link.cut()


# Says while the interpreter ends whether the thread that connects is still there: if it came back
# from torch now, it would abort the process.
ENDS_WHILE_CONNECTING = """
import os, sys, threading
from elastic_runtime.rendezvous.stores.c10d.link import Link

class Last:
    def __del__(self, exists=os.path.exists):
        print("still there" if exists(self.task) else "gone", flush=True)

last = Last()
connecting = threading.Thread(target=Link, args=("127.0.0.1", int(sys.argv[1])), daemon=True)
connecting.start()
last.task = f"/proc/self/task/{connecting.native_id}"
sys.stdin.read(1)
"""


def test_a_process_may_end_while_it_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        silent.settimeout(60.0)
        process = subprocess.Popen(
            [sys.executable, "-c", ENDS_WHILE_CONNECTING, str(silent.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.kill)
        silent.accept()[0].close()  # it asks who is there; then torch connects
        stack.enter_context(silent.accept()[0])
        said, printed = process.communicate("x", timeout=60.0)
    assert (process.returncode, said) == (0, "gone\n"), printed


_CONNECTS_AGAIN_AND_AGAIN = """
import sys, threading
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rendezvous.stores.c10d.link import Link

def again(met):
    while True:
        try:
            Link("127.0.0.1", int(sys.argv[1])).add("count", 1)
        except StoreUnavailable:
            pass
        met.set()

for _ in range(4):
    met = threading.Event()
    threading.Thread(target=again, args=(met,), daemon=True).start()
    met.wait()
"""


def test_a_process_may_end_while_it_connects_again(host: HostProcess) -> None:
    # As a node does whose store has gone with its host, in the moment in which the job ends.
    command = [sys.executable, "-c", _CONNECTS_AGAIN_AND_AGAIN, str(host.port)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[-2000:]


def test_foreign_bytes_under_our_key_are_shown_and_can_be_replaced(
    host: HostProcess, open_at: OpenAt, run_id: str
) -> None:
    node = open_at(host.port, "a")
    node.ear.hears(Snapshot)
    assert node.put("job", b"ours", ABSENT)
    link = Link("127.0.0.1", host.port)
    key = f"elastic/run/{run_id}/cell/job"
    link.swap(key, link.peek(key), b"\x80\x04not ours")
    link.cut()
    found = node.entry("job")
    assert found.value == b"\x80\x04not ours"
    assert node.put("job", b"ours again", found.version)
    node.ear.has("job", b"ours again")


def test_runs_do_not_see_each_other(host: HostProcess, open_at: OpenAt) -> None:
    node = open_at(host.port, "a")
    node.ear.hears(Snapshot)
    node.put("job", b"j")
    endpoint = Endpoint("c10d", (f"127.0.0.1:{host.port}",), hosted_here=True)
    other = C10dStore(endpoint, "another-run", 5.0)
    other.start("nodes/x", Ear())
    assert other.read("") == ()
    other.close()


def test_many_dead_nodes_are_not_read_again(host: HostProcess, run_id: str) -> None:
    link = Link("127.0.0.1", host.port)
    run = Run(link, run_id)
    run.put("job", b"j", ABSENT)
    for i in range(100):
        run.put(f"nodes/{i}", b"n", ABSENT)
    for i in range(99):
        run.remove(f"nodes/{i}")
    assert set(run.nodes()) == {"nodes/99"}
    assert link.peek(f"elastic/run/{run_id}/first") == b"101"
    assert set(run.nodes()) == {"nodes/99"}
    assert run.oldest(frozenset()) == "nodes/99"
    assert run.common() == ["job"]
    link.cut()


def test_threads_and_files_end_with_their_store(host: HostProcess, open_at: OpenAt) -> None:
    before, files = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    node = open_at(host.port, "a")
    node.ear.hears(Snapshot)
    node.register()
    node.store.look(True, frozenset())
    node.ear.until(lambda: node.ear.last_snapshot().wide, "a wide snapshot")
    node.store.close()
    left = [t for t in set(threading.enumerate()) - before if t.name != "c10d-guard"]
    assert left == []
    processes.wait_for(
        lambda: len(os.listdir("/proc/self/fd")) <= len(files), 5.0, "its files are closed"
    )


def test_a_client_that_is_given_out_is_not_looked_after(host: HostProcess) -> None:
    before = set(link._claimed)
    client = Link("127.0.0.1", host.port, kept=False).release()
    assert set(link._claimed) == before
    client.set("key", "value")
    assert client.get("key") == b"value"


@pytest.mark.parametrize(
    ("host_name", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.1", None),  # reserved for documentation: never of this machine
        ("127.0.0.2", "127.0.0.2"),
        ("0.0.0.0", ""),
        ("localhost", "127.0.0.1"),
    ],
)
def test_where_to_listen(host_name: str, address: str | None) -> None:
    assert listening_address(host_name, 1234) == address
