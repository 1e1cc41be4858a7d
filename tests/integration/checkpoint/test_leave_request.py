"""Workers that are asked to leave save a step that all of them have made, and leave together."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

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
import elastic_runtime as elastic

rank, world, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=world)
model = torch.nn.Linear(4, 4)
ddp = torch.nn.parallel.DistributedDataParallel(model)
state = elastic.State(model=model)
state.checkpoints(path + "/runs")
with state.resumed():
    print("ready", flush=True)
    while True:
        time.sleep(random.random() * 0.01)
        ddp(torch.ones(1, 4)).sum().backward()
        state.commit()
"""


@contextmanager
def ranks(path: Path, **environ: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks that make steps."""
    with ExitStack() as stack:
        found = []
        for rank in range(2):
            progress = path / f"progress-{rank}"
            ProgressFile(str(progress), create=True).close()
            own = {"RANK": str(rank), "WORLD_SIZE": "2", ENV_PROGRESS: str(progress)}
            worker = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT, str(path)],
                env={**os.environ, "PYTHONPATH": os.getcwd(), **own, **environ},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(worker)
            stack.callback(worker.kill)
            found.append(worker)
        for worker in found:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        yield found


def check_saved(path: Path) -> None:
    """All ranks have made the step that is saved, and nothing else is."""
    steps = []
    for rank in range(2):
        with closing(ProgressFile(str(path / f"progress-{rank}"))) as progress:
            steps.append(progress.read()[0])
    assert steps[0] == steps[1] > 0
    assert entries_of(path / "runs") == [f"step-{steps[0]}.term-1", "term-1"]


def test_a_leave_request_of_the_agent(tmp_path: Path) -> None:
    heard: queue.Queue[Message] = queue.Queue()
    channel = Channel(str(tmp_path / "agent.sock"), lambda _life, m: heard.put(m))
    with (
        closing(channel),
        ranks(tmp_path, **{ENV_CHANNEL: channel.path, ENV_ROUND: "4"}) as workers,
    ):
        hellos: list[Hello] = []
        while len(hellos) < len(workers):
            if isinstance(message := heard.get(timeout=DEADLINE), Hello):
                hellos.append(message)
        assert all(message.drains and message.round == 4 for message in hellos)
        assert channel.tell([0], Leave(round=4, reason="a node joins")) == 2
        assert [worker.wait(DEADLINE) for worker in workers] == [EXIT_WORKER_LEFT] * 2
    check_saved(tmp_path)


def test_a_sigterm_to_one_rank_without_an_agent(tmp_path: Path) -> None:
    with ranks(tmp_path) as workers:
        workers[1].send_signal(signal.SIGTERM)
        assert [worker.wait(DEADLINE) for worker in workers] == [128 + signal.SIGTERM] * 2
    check_saved(tmp_path)
