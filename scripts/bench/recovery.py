#!/usr/bin/env python3
"""How long a job stands still after a fault: elastic-run beside torchrun, in one run.

Each trial is a fresh job of a plain DDP script with one fault in it. Trials of all contenders
alternate, so that what else the machine does hits all of them alike. Writes JSON and a table.

    scripts/bench/recovery.py --repeat 10 --json /tmp/recovery.json

With ``--in-a-row`` the trials of a contender are made on one job, which is started anew only if it
does not come back: many faults in little time, also those that come after many others.

Figures: *stall* is the longest time after the fault without a step of the newest round that
advances the job's highest completed step; *full* is the time from the fault to the first step of
the full world (every worker of every node that lives); *lost* counts the steps that had to be done
again. Survivors in place go on with fewer ranks first: the stall is over both changes then.

``floor`` is no launcher but bare gloo, see ``measure/floor.py``: what the best one cannot beat. It
is measured where a worker is killed. A fork server is what torchrun has not got.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.measure import job
from scripts.bench.measure.contenders import CONTENDERS
from scripts.bench.measure.faults import (
    CUT,
    FAULTS,
    FIRST,
    LAST,
    MIDDLE,
    Ground,
    Result,
    Trial,
    measure,
)
from scripts.bench.measure.floor import FLOOR
from scripts.bench.measure.in_a_row import in_a_row
from scripts.bench.measure.network import Network, why_not
from scripts.bench.measure.report import line, machine, summary, table
from scripts.bench.measure.workload import ENV_BALLAST
from tests.etcd_server import EtcdProcess, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAMES = (*CONTENDERS, FLOOR)


def main() -> int:
    """Runs the benchmark; 0 unless a trial could not even be started."""
    args = _arguments()
    signal.signal(signal.SIGTERM, _interrupted)
    os.environ[ENV_BALLAST] = str(args.ballast)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    trials = plan(args.repeat, args.contenders, args.faults, args.nodes, seed)
    print(f"{len(trials)} trials, seed {seed}; files of those that fail stay in {args.directory}")
    results: list[Result] = []
    script = job.RESTARTED if args.restarted else job.PLAIN
    try:
        with ExitStack() as stack:
            network = stack.enter_context(Network(max(args.nodes))) if CUT in args.faults else None
            etcd = stack.enter_context(_etcd(network))
            ground = Ground(etcd.endpoint, script, args.deadline, network, args.keep)
            for result in _results(trials, args, ground):
                results.append(result)
                print(f"[{len(results)}] {line(result)}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; the table shows what was measured until then")
    if args.json:
        settings = {name: getattr(args, name) for name in ("deadline", "restarted", "ballast")}
        settings["seed"] = seed
        report = {
            "machine": machine(),
            "settings": settings,
            "summary": summary(results),
            "trials": [result.as_dict() for result in results],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(results))
    return int(any(result.outcome.startswith("did not start") for result in results))


def _results(trials: Sequence[Trial], args: argparse.Namespace, ground: Ground) -> Iterator[Result]:
    if args.in_a_row:
        yield from in_a_row(trials, args.directory, ground)
        return
    for number, trial in enumerate(trials):
        yield measure(trial, args.directory / f"trial-{number}", ground)


def plan(
    repeat: int,
    contenders: Sequence[tuple[str, int | None]],
    faults: Sequence[str],
    nodes: Sequence[int],
    seed: int,
) -> list[Trial]:
    """The trials in the order in which they are made.

    All contenders get the same victims at the same steps; their order is drawn anew each time.

    Args:
        repeat: how often each fault is measured.
        contenders: names, each with its own number of repetitions or None.
        faults: names.
        nodes: sizes of the job before the fault.
        seed: the same seed draws the same trials.
    """
    draw = random.Random(seed)
    trials = []
    for index in range(max(repeat, *(own or 0 for _, own in contenders))):
        for fault in faults:
            for size in [1] if FAULTS[fault].alone else nodes:
                ranks = size * FAULTS[fault].workers
                victim = draw.choice((FIRST, MIDDLE, LAST) if ranks > 2 else (FIRST, LAST))
                after = draw.randrange(20, 40)
                order = [
                    name
                    for name, own in contenders
                    if index < (repeat if own is None else own) and FAULTS[fault].meets(name)
                ]
                draw.shuffle(order)
                trials += [Trial(name, size, fault, victim, after, index) for name in order]
    return trials


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=10, help="times each fault is measured")
    parser.add_argument(
        "--contenders",
        type=_contenders,
        default=_contenders(",".join(_NAMES)),
        help=f"of {', '.join(_NAMES)}; NAME:N for other repetitions than --repeat",
    )
    default = [fault for fault in FAULTS if fault != CUT]
    parser.add_argument(
        "--in-a-row", action="store_true", help="many faults to one job, one after the other"
    )
    text = f"of {', '.join(FAULTS)} (all but {CUT}, which needs root, if none are named)"
    parser.add_argument("--faults", type=_names(FAULTS), default=default, help=text)
    parser.add_argument("--nodes", type=_sizes, default=[2, 3], help="sizes before the fault")
    parser.add_argument(
        "--restarted", action="store_true", help="go on from checkpoints, by restarts"
    )
    text = (
        "GiB of memory that each worker has touched besides: the kernel takes it back when one dies"
    )
    parser.add_argument("--ballast", type=float, default=0.0, help=text)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds until 'not back'")
    parser.add_argument("--seed", type=int, help="draws the same trials again")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    parser.add_argument("--directory", type=Path, help="for the jobs' files (a new one in /tmp)")
    parser.add_argument("--keep", action="store_true", help="keep the jobs' files, all of them")
    args = parser.parse_args()
    if CUT in args.faults and (reason := why_not()):
        parser.error(f"{CUT} cannot be measured here: {reason}")
    if args.in_a_row and (alone := [f for f in args.faults if f == CUT or FAULTS[f].alone]):
        parser.error(f"{', '.join(alone)}: these need a job of their own")
    if args.directory is None:
        args.directory = Path(tempfile.mkdtemp(prefix="recovery-"))
    return args


@contextmanager
def _etcd(network: Network | None) -> Iterator[EtcdProcess]:
    """An etcd on the loopback, which the nodes of a network can reach as well."""
    port = free_port()
    addresses = ["127.0.0.1", *([network.host] if network else [])]
    urls = ",".join(f"http://{address}:{port}" for address in addresses)
    server = EtcdProcess("--listen-client-urls", urls, port=port)
    try:
        yield server
    finally:
        server.close()


def _contenders(text: str) -> list[tuple[str, int | None]]:
    chosen: list[tuple[str, int | None]] = []
    for part in text.split(","):
        name, _, own = part.partition(":")
        if name not in _NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(_NAMES)}")
        chosen.append((name, int(own) if own else None))
    return chosen


def _names(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return text.split(",")

    return parse


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if not all(2 <= size <= 3 for size in sizes):
        raise argparse.ArgumentTypeError("the jobs have 2 or 3 nodes")
    return sizes


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
