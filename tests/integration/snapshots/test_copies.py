"""What the nodes copy of each other: ranks with an agent's memory each, and no agent."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from elastic_runtime import State
from elastic_runtime.agent.snapshot_server import SnapshotServer
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS, SnapshotMemory, write_key
from elastic_runtime.worker import context as contexts
from tests.checkpoints import with_outline
from tests.ranks import run_ranks, values
from tests.trained import cut_off, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_KEY = "5ec4e7"


def _remember(folder: Path, port: int, machine: str) -> tuple[Path, _Heard]:
    """This rank has an agent's memory in a directory, and is listened to."""
    rank, path = dist.get_rank(), folder / f"node-{dist.get_rank()}"
    memory = SnapshotMemory(str(path), 1 << 30, "127.0.0.1", port, f"n{rank}", machine)
    contexts._context = contexts.WorkerContext({ENV_SNAPSHOTS: memory.encode(), "RANK": str(rank)})
    heard = _Heard()
    logger = logging.getLogger("elastic_runtime")
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    return path, heard


def _train(folder: Path, silent: list[int]) -> dict[str, Any]:
    """Takes snapshots; what this node has then, and what it has complained about."""
    rank = dist.get_rank()
    path = folder / f"node-{rank}"
    path.mkdir()
    write_key(str(path), _KEY)
    server = SnapshotServer(str(path), lambda: _KEY, "127.0.0.1")
    if rank in silent:
        server.close()
    path, heard = _remember(folder, server.port, f"machine {rank}")
    model = torch.nn.Sequential(*[torch.nn.Linear(5, 5) for _ in range(6)])
    state = State(model=model)
    state.checkpoints(folder / "runs", snapshots=1)
    with cut_off(state):
        for _ in range(10):
            time.sleep(0.03)  # on shorter steps the ranks agree more rarely
            state.commit()
            assert state._saver is not None
            state._saver.wait()
    dist.barrier()
    files = sorted(file.name for file in path.glob("*/step-*/*"))
    again = State(model=model)
    again.checkpoints(folder / "runs", snapshots=1)
    with cut_off(again):
        pass
    dist.barrier()
    return {"files": files, "heard": heard.text}


class _Heard(logging.Handler):
    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += self.format(record)


def _train_many(folder: Path, silent: list[int]) -> dict[str, Any]:
    """The same, described as if it had many parts."""
    with with_outline():
        return _train(folder, silent)


@pytest.mark.parametrize(("train", "beside"), [(_train, ".metadata"), (_train_many, ".outline")])
def test_each_node_has_the_files_of_two(
    tmp_path: Path, train: Callable[..., Any], beside: str
) -> None:
    told = values(run_ranks(3, train, tmp_path, []))
    assert "'copied': True" in told[0]["heard"]
    for rank, node in enumerate(told):
        own = {f"rank-{one}.distcp" for one in (rank, (rank - 1) % 3)}
        assert set(node["files"]) == {beside, "MANIFEST.json", *own}
    assert "'source': 'peer'" in told[0]["heard"]


def test_a_buddy_that_cannot_be_reached_costs_its_copy(tmp_path: Path) -> None:
    told = values(run_ranks(2, _train, tmp_path, [1]))
    assert "rank-1.distcp" not in told[0]["files"]
    assert {"rank-0.distcp", "rank-1.distcp"} < set(told[1]["files"])
    heard = told[0]["heard"]
    assert "'copied': False" in heard
    assert heard.count("snapshot.uncopied") == 1
    assert "the snapshots of n1 cannot be reached" in heard
    # What no rank could read is no damage; there is nothing older, and so the job begins anew.
    assert "snapshot.incomplete" in heard
    assert "checkpoint.resumed" not in heard


def _train_without(folder: Path) -> dict[str, Any]:
    """Goes on after the memory of one node has been taken away, as cleaners of /dev/shm do."""
    path, heard = _remember(folder, 9, "one machine")
    path.mkdir()
    state = State(a=1)
    state.checkpoints(folder / "runs", snapshots=1)
    with trained(state):
        if dist.get_rank() == 1:
            path.rmdir()
        for _ in range(10):
            time.sleep(0.03)  # on shorter steps the ranks agree more rarely
            state.commit()
    return {"there": path.exists(), "heard": heard.text}


def test_memory_that_is_gone_costs_snapshots_and_nothing_else(tmp_path: Path) -> None:
    first, second = values(run_ranks(2, _train_without, tmp_path))
    assert first["heard"].count("snapshot.refused") == 1
    assert f"cannot take snapshots in {tmp_path / 'node-1'}" in first["heard"]
    assert not second["there"], "it would be readable by all, and nobody would remove it"
