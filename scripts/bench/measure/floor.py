"""What no launcher can beat: bare gloo ranks that know beforehand who will die.

From the SIGKILL to the moment at which the last survivor has completed an all-reduce in a new
group, over another prefix of the same store. Nobody has to find out who is gone, to agree on who
goes on, or to bring a state anywhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from elastic_runtime.system import torch_private
from scripts.bench.measure.contenders import ENVIRONMENT
from scripts.bench.measure.workload import STEP_SECONDS
from tests import processes

FLOOR = "floor"
_HOST = "127.0.0.1"
_TIMEOUT = timedelta(seconds=30)


class NotBack(Exception):
    """A rank has ended before it said what it was to say."""


def measure(ranks: int, victim: int, after: int, deadline: float) -> float:
    """Starts the ranks, kills one, and waits for the others.

    Args:
        ranks: how many there are before.
        victim: the rank that is killed.
        after: it is killed once the ranks have made so many steps.
        deadline: seconds for the start, and for the recovery.

    Returns:
        Seconds from the SIGKILL to the first all-reduce of all survivors.

    Raises:
        NotBack: it took longer, or a rank failed.
    """
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    with _started(ranks, victim, store.port, after, deadline) as started:
        for process in started:
            _said(process)
        killed = time.monotonic()
        os.kill(started[victim].pid, signal.SIGKILL)
        survivors = [process for rank, process in enumerate(started) if rank != victim]
        return max(float(_said(process)) for process in survivors) - killed


@contextmanager
def _started(
    ranks: int, victim: int, port: int, after: int, deadline: float
) -> Iterator[list[subprocess.Popen[str]]]:
    mark = f"floor-{uuid.uuid4().hex}"
    ending = threading.Timer(2 * deadline, processes.end, (mark,))
    ending.start()
    numbers = [str(number) for number in (ranks, victim, port, after)]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), *numbers],
            env={**os.environ, **ENVIRONMENT, processes.MARKER: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        yield started
    finally:
        ending.cancel()
        processes.end(mark)
        for process in started:
            process.communicate()


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NotBack(f"a rank ended with code {process.poll()}")
    return line.strip()


def _take_part(rank: int, ranks: int, victim: int, port: int, after: int) -> None:
    """One rank: steps until a peer dies, then a new group and one more step."""
    store = dist.TCPStore(_HOST, port, is_master=False, wait_for_workers=False, timeout=_TIMEOUT)

    def connect(prefix: str, number: int, size: int) -> None:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(prefix, store),
            rank=number,
            world_size=size,
            timeout=_TIMEOUT,
        )

    def steps() -> None:
        count = 0
        while True:
            dist.all_reduce(torch.ones(1))
            count += 1
            if count == after:
                print("stepping", flush=True)
            time.sleep(STEP_SECONDS)

    connect("before", rank, ranks)
    try:
        steps()
    except RuntimeError as error:
        error.__traceback__ = None  # it holds on to the group
    old = torch_private.abort_groups()  # which releases those that wait for this rank
    threading.Thread(target=old.clear, daemon=True).start()
    connect("after", rank - (rank > victim), ranks - 1)
    dist.all_reduce(torch.ones(1))
    print(time.monotonic(), flush=True)
    sys.stdin.read()  # ends with the one who asked, and breaks nobody's connection before


if __name__ == "__main__":
    _take_part(*map(int, sys.argv[1:]))
