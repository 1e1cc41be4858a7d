"""The row of the table that is about another node: its agent's memory, over loopback."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import elastic_runtime as elastic
from elastic_runtime.agent.snapshot_server import SnapshotServer
from elastic_runtime.checkpoint.format.manifest import MANIFEST, CheckpointId
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.snapshot.peer_reader import SnapshotSource
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.parts.per_rank import RankPosition
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory, write_key
from elastic_runtime.worker.peers import Peers
from scripts.bench.checkpoints.contest import Sample, Stage, local, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

PEER = "restore from a peer"

_SERVERS_KEY = "benchmark"
_KEY = "0" * 16
_WHICH = CheckpointId(term=1, step=1)
_PATIENCE = timedelta(minutes=5)


def from_peer(stage: Stage) -> list[Sample]:
    """From another node's agent, beside a bare gloo send of the same bytes.

    Each rank has a process on the other side, which serves as the agent and sends as the peer.
    """
    model = stage.model()
    tensors = [local(parameter) for parameter in model]
    where = stage.memory / "peer"
    with stage.trained(where / _KEY, model) as state:
        state.commit()
        state.save(sync=True)
        with _other_side(where, stage, tensors) as (port, line, group):
            loading = _loading(where, port)

            def receive() -> None:
                line.send(True)
                for tensor in tensors:
                    group.recv([tensor], 1, 0).wait()

            peers = Peers()
            parts = elastic.State(model=model).saved_parts(generators=False)

            def ours() -> None:
                place = RankPosition(peers.rank, peers.world)
                LoadRun(loading, _WHICH, parts, place).run(peers)

            return stage.compete(
                PEER, {"limit": lambda: timed(receive), "ours": lambda: timed(ours)}
            )


def _loading(where: Path, port: int) -> SnapshotSource:
    memory = SnapshotMemory(str(where), 0, "127.0.0.1", port, "peer", "")
    write_key(str(where), _SERVERS_KEY)
    theirs = [path.name for path in (where / _KEY / _WHICH.name).iterdir()]
    own = LocalStorage(where / "none")
    return SnapshotSource(own, _KEY, dict.fromkeys((*theirs, MANIFEST), memory), "peer", str(where))


@contextmanager
def _other_side(
    where: Path, stage: Stage, tensors: list[torch.Tensor]
) -> Iterator[tuple[int, Connection, dist.ProcessGroupGloo]]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    meeting = str(stage.memory / f"meeting-{stage.rank}")
    sizes = [tensor.shape for tensor in tensors]
    process = spawn.Process(target=_serve, args=(str(where), meeting, sizes, theirs), daemon=True)
    process.start()
    try:
        port = ours.recv()
        yield port, ours, _group(meeting, 0)
    finally:
        process.kill()
        process.join()


def _group(meeting: str, rank: int) -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(dist.FileStore(meeting, 2), rank, 2, _PATIENCE)


def _serve(where: str, meeting: str, sizes: list[torch.Size], line: Connection) -> None:
    server = SnapshotServer(where, lambda: _SERVERS_KEY, "127.0.0.1")
    line.send(server.port)
    group = _group(meeting, 1)
    tensors = [torch.ones(size) for size in sizes]
    while line.recv():
        for tensor in tensors:
            group.send([tensor], 0, 0).wait()
