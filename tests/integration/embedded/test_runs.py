"""Runs beside each other in one store, and what is left when a store ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from elastic_runtime.config import Endpoint
from elastic_runtime.defaults import CONNECT_TIMEOUT
from elastic_runtime.protocol.records import node_key
from elastic_runtime.rendezvous.core.membership_events import Goodbye, Join
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from tests import processes
from tests.conformance.listening import Ear
from tests.etcd_server import free_port
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from tests.integration.embedded.conftest import OpenAt
    from tests.integration.embedded.hosting import HostProcess


def test_runs_do_not_see_each_other(host: HostProcess, open_at: OpenAt, run_id: str) -> None:
    node = open_at(host.port, "a")
    node.put("job", b"j")
    endpoint = Endpoint("c10d", (f"127.0.0.1:{host.port}",), hosted_here=True)
    other = EmbeddedStore(endpoint, "another-run", 5.0, CONNECT_TIMEOUT)
    other.start("nodes/x", Ear())
    assert other.read("") == ()
    assert run_id in other.runs()
    assert "another-run" not in other.runs()
    other.close()


def test_threads_and_files_end_with_their_store(host: HostProcess, open_at: OpenAt) -> None:
    before, files = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    node = open_at(host.port, "a")
    hosting = open_at(free_port(), "b", may_host=True)
    for one in (node, hosting):
        one.register()
        one.store.close()
    assert set(threading.enumerate()) - before == set()
    processes.wait_for(
        lambda: len(os.listdir("/proc/self/fd")) <= len(files), 5.0, "its files are closed"
    )


_ENDS = """
import sys
from elastic_runtime.config import Endpoint
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
store = EmbeddedStore(Endpoint("c10d", (sys.argv[1],), hosted_here=True), "run", 5.0, 15.0)
store.start("nodes/a", lambda event: None)
print("begun", flush=True)
sys.stdin.read(1)
"""


def test_a_process_may_end_while_it_connects(host: HostProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (silent.getsockname()[1], host.port, free_port()):
            done = subprocess.run(
                [sys.executable, "-c", _ENDS, f"127.0.0.1:{port}"],
                input="x",
                capture_output=True,
                text=True,
                timeout=PROGRAM_TIMEOUT,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


def test_the_node_that_hosts_the_store_goes_last() -> None:
    """The others still have to read how the job has ended."""
    endpoint = Endpoint("c10d", (f"127.0.0.1:{free_port()}",))
    policy, gone = Policy(2, 2), []

    def member(name: str) -> Participant:
        store = EmbeddedStore(endpoint, "run", 60.0, CONNECT_TIMEOUT)
        part = Participant(store, policy, NodeIdentity(name, "127.0.0.1", 1), lambda notice: None)
        part.say(Join())
        key = node_key(part.node)
        processes.wait_for(lambda: store.read(key), 60.0, f"the key of {name}")
        return part

    host, other = member("host"), member("other")

    def leave() -> None:
        host.wait_for_others_to_leave(3600.0)
        gone.append("host")

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    other.wait_for_others_to_leave(3600.0)  # it hosts nothing, and waits for nobody
    gone.append("other")
    other.say(Goodbye())
    leaving.join(60.0)
    for part in (other, host):
        part.close()
    assert gone == ["other", "host"]
