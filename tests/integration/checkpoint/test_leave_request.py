"""Workers that are asked to leave save a step that all of them have made, and leave together."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.workers.worker_channel import Channel
from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_PROGRESS,
    ENV_ROUND,
    EXIT_WORKER_LEFT,
    Hello,
    Leave,
    Message,
    ProgressFile,
)
from tests.ranks import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE = 60.0

_SCRIPT = """
import sys, time, random, signal, os
import torch, torch.distributed as dist
from elastic_runtime import Checkpointer

rank, world, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ckpt = Checkpointer(path + "/runs", {"model": model})
ckpt.resume()
print("ready", flush=True)
while True:
    time.sleep(random.random() * 0.01)
    model(torch.ones(1, 4)).sum().backward()
    ckpt.step()
"""


def start(path: Path, world: int, **environ: str) -> list[subprocess.Popen[str]]:
    found = []
    for rank in range(world):
        progress = path / f"progress-{rank}"
        ProgressFile(str(progress), create=True).close()
        own = {"RANK": str(rank), "WORLD_SIZE": str(world), ENV_PROGRESS: str(progress)}
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", _SCRIPT, str(path)],
                env={**os.environ, "PYTHONPATH": os.getcwd(), **own, **environ},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    return found


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    found: list[subprocess.Popen[str]] = []
    yield found
    for worker in found:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


def ready(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"


def steps(path: Path, world: int) -> list[int]:
    found = []
    for rank in range(world):
        progress = ProgressFile(str(path / f"progress-{rank}"))
        found.append(progress.read()[0])
        progress.close()
    return found


def test_a_leave_request_of_the_agent(tmp_path: Path, workers: list[subprocess.Popen[str]]) -> None:
    heard: queue.Queue[Message] = queue.Queue()
    channel = Channel(str(tmp_path / "agent.sock"), lambda _life, m: heard.put(m))
    try:
        workers += start(tmp_path, 2, **{ENV_CHANNEL: channel.path, ENV_ROUND: "4"})
        ready(workers)
        hellos = [heard.get(timeout=DEADLINE) for _ in workers]
        assert all(isinstance(m, Hello) and m.drains and m.round == 4 for m in hellos)
        assert channel.tell([0], Leave(round=4, reason="a node joins")) == 2
        assert [worker.wait(DEADLINE) for worker in workers] == [EXIT_WORKER_LEFT] * 2
    finally:
        channel.close()
    last = steps(tmp_path, 2)
    assert last[0] == last[1] > 0
    assert entries_of(tmp_path / "runs") == [f"step-{last[0]}.term-1", "term-1"]


def test_a_sigterm_to_one_rank_without_an_agent(
    tmp_path: Path, workers: list[subprocess.Popen[str]]
) -> None:
    workers += start(tmp_path, 2)
    ready(workers)
    workers[1].send_signal(signal.SIGTERM)
    assert [worker.wait(DEADLINE) for worker in workers] == [128 + signal.SIGTERM] * 2
    last = steps(tmp_path, 2)
    assert last[0] == last[1]
    assert entries_of(tmp_path / "runs") == [f"step-{last[0]}.term-1", "term-1"]
