#!/usr/bin/env python3
"""What saving and loading cost, beside what the machine can do and what others need for it.

All contenders of a row take turns (ABAB…) in the same processes, on the same state: 16 MiB tensors,
sharded over the ranks. Times are those of the slowest rank, medians of all turns but the first.

    scripts/bench/checkpoint.py --repeat 5 --json /tmp/checkpoint.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.checkpoints import loading, peers, saving
from scripts.bench.checkpoints.contest import Sample, Size, stages
from scripts.bench.checkpoints.table import Run, table
from scripts.bench.measure.contenders import ENVIRONMENT
from scripts.bench.measure.report import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scripts.bench.checkpoints.contest import Stage

_MIB = 1 << 20

ROWS: dict[str, Callable[[Stage], list[Sample]]] = {
    "blocked": saving.blocked,
    "durable": saving.durable,
    "load": loading.load,
    "restore": loading.restore,
    "peer": peers.from_peer,
    "tiny": saving.tiny,
    "memory": saving.extra_memory,
    "slowdown": saving.slowdown,
}


def main() -> int:
    """Runs the benchmark."""
    args = _arguments()
    signal.signal(signal.SIGTERM, _interrupted)
    runs: list[Run] = []
    try:
        for megabytes in args.megabytes:
            for ranks in args.ranks:
                size = Size(int(megabytes * _MIB), ranks)
                runs.append(Run(size, measure(size, args.rows, args.repeat, args.directory)))
    except KeyboardInterrupt:
        print("interrupted; what follows is what was measured until then")
    if args.json:
        report = {"machine": machine(), "runs": [asdict(run) for run in runs]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(runs))
    return 0


def measure(
    size: Size, rows: Sequence[str], repeat: int, directory: Path | None = None
) -> list[Sample]:
    """Starts the ranks and gives what they have measured.

    Args:
        size: of the state.
        rows: of ``ROWS``.
        repeat: how often each contender has its turn.
        directory: on the disk that is measured; None: where temporary files go.

    Raises:
        SystemExit: a rank failed.
    """
    os.environ.update(ENVIRONMENT | {"LOCAL_WORLD_SIZE": str(size.ranks)})
    spawn = multiprocessing.get_context("spawn")
    places = tuple(
        Path(tempfile.mkdtemp(prefix="checkpoint-bench-", dir=parent))
        for parent in (directory, "/dev/shm")
    )
    answer, answered = spawn.Pipe(duplex=False)
    started = [
        spawn.Process(target=_rank, args=(rank, size, list(rows), repeat, places, answered))
        for rank in range(size.ranks)
    ]
    try:
        for process in started:
            process.start()
        answered.close()
        try:
            samples: list[Sample] = answer.recv()
        except EOFError:
            raise SystemExit("a rank failed; see above") from None
        for process in started:
            process.join()
    finally:
        for process in started:
            process.kill()
            process.join()
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
    return samples


def _rank(
    rank: int,
    size: Size,
    rows: list[str],
    repeat: int,
    places: tuple[Path, ...],
    answer: multiprocessing.connection.Connection,
) -> None:
    samples: list[Sample] = []
    try:
        with stages(size, repeat, rank, *places) as stage:
            for row in rows:
                found = ROWS[row](stage)
                if rank == 0:
                    samples += found
                    for one in found:
                        told = ", ".join(f"{value:.3f}" for value in one.values)
                        print(f"{one.row}, {one.contender}: {told}", file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # nobody waits for the other ranks
    if rank == 0:
        answer.send(samples)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--megabytes", type=float, nargs="+", default=[1024, 200], help="of the state (1024 200)"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--repeat", type=int, default=5, help="turns of each contender (5)")
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    return parser.parse_args()


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
