"""A job whose every port is spoken to by somebody who does not belong to it, while it trains."""

from __future__ import annotations

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.snapshot.peer_reader import PeerConnection
from elastic_runtime.protocol.peer_proof import (
    NONCE,
    SNAPSHOTS,
    hello,
    key_for,
    new_nonce,
    new_secret,
)
from elastic_runtime.protocol.records import JOB, NODES, JobRecord, NodeRecord
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory
from elastic_runtime.rendezvous.core.membership_events import ALIVE, SILENT
from elastic_runtime.rendezvous.probe import ask_node, probe_node
from tests.integration.snapshots.job import Job
from tests.processes import elastic_run
from tests.strangers import (
    GARBAGE,
    Port,
    Recorder,
    listening,
    says,
    slow,
    store_of,
    unused,
)

if TYPE_CHECKING:
    from pathlib import Path


_LOCAL = "127.0.0.1"
_PATIENCE = 60.0
# gloo waits for the rest of what it takes for a rank, so nobody waits long for its answer.
_SHORT = 0.1
# What C++ and Python print where something has gone wrong that nobody expected.
_DUMPS = ("frame #", "Fatal Python error", "Traceback", "Exception raised", "[W", "[E")


def _records(job: Job) -> tuple[JobRecord, list[NodeRecord]]:
    """What whoever may read the store knows."""
    with store_of(job.event("job.join_command")) as store:
        entries = {entry.key: entry.value for entry in store.read("")}
    nodes = [NodeRecord.decode(k, v) for k, v in entries.items() if k.startswith(NODES)]
    return JobRecord.decode(JOB, entries[JOB]), nodes


@pytest.mark.parametrize("kind", ["in_place", "ddp"])
def test_strangers_are_told_nothing_and_stop_nothing(tmp_path: Path, kind: str) -> None:
    metrics = unused()
    with Job(tmp_path, kind, 2, "--metrics-port", str(metrics)) as job:
        job.go()
        before = {note.pid for note in job.hold(2)}
        job.go()
        record, nodes = _records(job)
        ports = listening(job.pids())
        # One machine is enough for this job, so nobody else's can reach it.
        assert {port.address for port in ports} == {_LOCAL}, job.story()
        probes = {Port(_LOCAL, node.probe_port) for node in nodes}
        half = hello(SNAPSHOTS) + new_nonce()
        snapshots = {port for port in ports if len(says(port, half, _SHORT)) == NONCE}
        ours = probes | snapshots
        assert len(snapshots) == len(probes) == 2
        assert ours | {Port(_LOCAL, metrics)} < ports
        assert len(ports - ours) >= 5  # metrics, the store of the job, that of the round, gloo's

        with slow(ports, 8):
            for port in ours:
                for said in GARBAGE:
                    assert says(port, said) == b"", (port in probes, said)
            with ThreadPoolExecutor(16) as pool:
                every = [(port, said) for port in ports - ours for said in GARBAGE]
                heard = pool.map(lambda one: says(*one, _SHORT), every)
                assert record.secret.encode() not in b"".join(heard)
            for node in nodes:
                _replay(node, record.secret, probes, snapshots)
            for port in snapshots:
                memory = SnapshotMemory("", 0, *port, "stranger", "")
                for secret in (new_secret(), ""):
                    with pytest.raises(OSError, match=r"closed the connection|reset"):
                        PeerConnection(memory, key_for(SNAPSHOTS, secret))
                PeerConnection(memory, key_for(SNAPSHOTS, record.secret)).close()

        assert {note.pid for note in job.hold(2)} == before, job.story()
        job.finish()
        assert not job.events("round.left")
        assert not job.events("worker.killed")
        said = job.everything()
        assert record.secret not in said
        assert key_for(SNAPSHOTS, record.secret) not in said
        assert not [dump for dump in _DUMPS if dump in said], said


def test_cold_workers_listen_no_further(tmp_path: Path) -> None:
    with Job(tmp_path, "ddp", 2, "--cold") as job:
        job.go()
        job.hold(2)
        ports = listening(job.pids())
        assert len(ports) >= 5  # those of agents, the store of the round, gloo's
        assert {port.address for port in ports} == {_LOCAL}, job.story()
        job.finish()


def _replay(node: NodeRecord, secret: str, probes: set[Port], snapshots: set[Port]) -> None:
    """Overhears a probe, and says all of it again, to everybody; and a wrong secret."""
    own = Port(_LOCAL, node.probe_port)
    with closing(Recorder(own)) as recorder:
        assert ask_node(node.node, _LOCAL, recorder.port, _PATIENCE, secret)["node"] == node.node
    half = recorder.of_client[: len(recorder.of_client) // 2]
    for said, replies in ((recorder.of_client, NONCE), (half, NONCE), (recorder.of_server, 0)):
        for port in probes:
            assert len(says(port, said)) == replies
        for port in snapshots:
            assert says(port, said) == b""
    assert probe_node(node.node, *own, _PATIENCE, secrets.token_hex(32)) == SILENT
    assert probe_node(node.node, *own, _PATIENCE, secret) == ALIVE


def test_a_node_that_listens_everywhere_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    natted = ("--local-addr", "203.0.113.9")
    ran = elastic_run("--log-format", "json", *natted, "train.py", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "listening.wide" in line]
    assert "203.0.113.9 is no address of this machine" in json.loads(line)["reason"]
