"""Ranks of a job as real processes, connected by gloo, within one test.

They are forked from a server that has imported torch, so that a test with four of them takes a
fraction of a second. As children of a test they have no agent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["elastic_runtime.training.run", "elastic_runtime.training.checkpoints", "torch._dynamo"]
)


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    Attributes:
        value: what its function returned.
        error: name of the class of what it raised, "" if nothing.
        text: its message; the code of a ``SystemExit``.
        signal: the signal that killed it, 0 if none did.
    """

    value: Any = None
    error: str = ""
    text: str = ""
    signal: int = 0


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, deadline: float = 60.0
) -> list[Outcome]:
    """Calls ``function(*args)`` on each rank of a new group and waits for all of them.

    Args:
        world: how many ranks.
        function: importable by name.
        args: picklable, the same for all.
        deadline: seconds after which ranks that are still there are killed.
    """
    with tempfile.TemporaryDirectory() as meeting:
        readers, processes = [], []
        for rank in range(world):
            reader, writer = _SERVER.Pipe(duplex=False)
            process = _SERVER.Process(
                target=_rank,
                # The server's environment is that of the first test that came here.
                args=(writer, rank, world, f"{meeting}/store", dict(os.environ), function, args),
            )
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        end = time.monotonic() + deadline
        try:
            return [
                _outcome(process, reader, max(0.0, end - time.monotonic()))
                for process, reader in zip(processes, readers, strict=True)
            ]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()


def values(outcomes: list[Outcome]) -> list[Any]:
    """What all ranks returned; fails if one did not."""
    failed = [outcome for outcome in outcomes if outcome.error or outcome.signal]
    assert not failed, failed
    return [outcome.value for outcome in outcomes]


def _outcome(process: Any, reader: Connection, patience: float) -> Outcome:
    try:
        outcome = reader.recv() if reader.poll(patience) else Outcome(error="Overdue")
    except EOFError:
        process.join()
        outcome = Outcome(signal=max(0, -process.exitcode))
    return outcome


def _rank(
    writer: Connection,
    rank: int,
    world: int,
    store: str,
    environ: dict[str, str],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environ)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # for a rank alone, without a group
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        outcome = Outcome(value=function(*args))
    except SystemExit as leaving:
        outcome = Outcome(error="SystemExit", text=str(leaving.code))
    except BaseException as error:
        outcome = Outcome(error=type(error).__name__, text=str(error))
        if not type(error).__module__.startswith("elastic_runtime"):
            traceback.print_exc()
    writer.send(outcome)
    writer.close()
    # The group is left as it is: some tests have broken it.
    os._exit(0)


def kill_self() -> None:
    """Ends this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def entries_of(directory: Path) -> list[str]:
    """The names in a directory, in order."""
    return sorted(path.name for path in directory.iterdir())


def saves(directory: Path) -> list[str]:
    """The names of the checkpoints in a directory, unfinished ones too."""
    return [name for name in entries_of(directory) if name.startswith("step-")]
