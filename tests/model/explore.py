"""Explores schedules: what nodes, networks and stores do to each other, decided by a seed.

python -m tests.model.explore --seeds 10000        # tries seeds 0 … 9999
python -m tests.model.explore --seed 4711          # replays one, with its trace
"""

from __future__ import annotations

import argparse
import functools
import gc
import multiprocessing
import random
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.protocol import records
from tests.model.clockwork import Violation
from tests.model.schedule import Schedule
from tests.model.themes import BY_NAME, Theme

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Result:
    """What became of a schedule."""

    seed: int
    violation: str
    trace: tuple[str, ...]
    seals: int
    faults: tuple[str, ...]
    simulated: float


@contextmanager
def quick_records() -> Iterator[None]:
    """Reads equal bytes only once: most of the time would go into JSON otherwise."""
    original = records.Record.__dict__["decode"]

    @functools.lru_cache(maxsize=4096)
    def read(cls: type[records.Record], key: str, data: bytes) -> Any:
        return original.__func__(cls, key, data)

    records.Record.decode = classmethod(read)  # type: ignore[assignment, arg-type]
    try:
        yield
    finally:
        records.Record.decode = original  # type: ignore[method-assign]


def explore(seed: int, theme: Theme | None = None, *, tracing: bool = False) -> Result:
    """Runs one schedule, of this theme if one is given."""
    random.seed(seed)  # of pauses that are as long as chance has it
    schedule = Schedule(seed, theme, tracing=tracing)
    violation = ""
    try:
        schedule.run()
    except Violation as found:
        violation = str(found)
    except Exception as error:
        if tracing:
            raise
        violation = f"{type(error).__name__}: {error}"
    world, clock = schedule.world, schedule.clock
    return Result(
        seed, violation, tuple(clock.trace), world.seals, tuple(schedule.faults), clock.now
    )


def explore_many(seeds: range, stop_at: int = 1, theme: Theme | None = None) -> list[Result]:
    """Runs the schedules of these seeds; returns those that failed, at most ``stop_at``."""
    failed: list[Result] = []
    gc.disable()
    with quick_records():
        for number, seed in enumerate(seeds):
            result = explore(seed, theme)
            if result.violation:
                failed.append(result)
                if len(failed) >= stop_at:
                    break
            if number % 200 == 199:
                gc.collect()
    gc.enable()
    return failed


def _job(job: tuple[range, int, Theme | None]) -> list[Result]:
    return explore_many(*job)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to try")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--theme", choices=sorted(BY_NAME), help="schedules of this kind only")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop-at", type=int, default=20, help="failures per process")
    options = parser.parse_args()
    theme = BY_NAME.get(options.theme)
    if options.seed is not None:
        result = explore(options.seed, theme, tracing=True)
        print("\n".join(result.trace))
        print(f"seed {result.seed}: {result.violation or 'holds'} ({result.simulated:.1f} s)")
        return bool(result.violation)
    begun = time.monotonic()
    last = options.first + options.seeds
    chunk = max(1, min(500, options.seeds // options.jobs))
    jobs = [
        (range(at, min(at + chunk, last)), options.stop_at, theme)
        for at in range(options.first, last, chunk)
    ]
    failed: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for part in pool.imap(_job, jobs):
            failed += part
            for result in part:
                faults = ", ".join(result.faults)
                print(f"seed {result.seed} [{faults}]: {result.violation}", flush=True)
    print(f"{len(failed)} of {options.seeds} failed in {time.monotonic() - begun:.1f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
