"""A job in place whose network is cut. As root, one cut after the other, or those of a seed::

    python -m tests.partitions peers --nodes 3 --seconds 30 --hang-timeout 6
    python -m tests.partitions pair store --seconds 3 10 --min 2 --one 0
    python -m tests.partitions --seed 7 --count 20 --nodes 4 --seconds 3 10 30

It prints what each cut cost. It fails, with the ends of all logs, if a node ends by itself, if not
all nodes are back 180 s after a heal, or if the history at the end breaks the guarantee. Logs stay
in the directory that it names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.partitions import cuts
from tests.partitions.cuts import Cut, Kind
from tests.partitions.job import InPlaceJob, PlainJob
from tests.partitions.network import How, Network, why_not


def main() -> None:
    """Runs a job in place, cuts it, and prints what it cost; fails if a promise was broken."""
    kinds = ", ".join(kind.name.lower() for kind in Kind)
    parser = argparse.ArgumentParser(
        prog="python -m tests.partitions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", help=f"one cut after the other: {kinds}")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--min", type=int, default=1)
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0], help="of a cut")
    parser.add_argument("--one", type=int, default=1, help="index of the node that is struck")
    parser.add_argument("--how", choices=[how.name.lower() for how in How], default="drop")
    parser.add_argument("--plain", action="store_true", help="a script that restarts")
    parser.add_argument("--hang-timeout", type=float, default=6.0)
    parser.add_argument("--lease-ttl", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="draw cuts instead")
    parser.add_argument("--count", type=int, default=10, help="how many to draw")
    parser.add_argument("--directory", type=Path, help="where logs go")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    if args.seed is None:
        how = How[args.how.upper()]
        plan = [Cut(Kind[k.upper()], args.one, s, how) for k in args.kinds for s in args.seconds]
    else:
        plan = [*cuts.drawn(args.seed, args.count, args.nodes, args.seconds)]
    directory = args.directory or Path(tempfile.mkdtemp(prefix="elastic-partitions-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"logs: {directory}", flush=True)
    make = PlainJob if args.plain else InPlaceJob
    lease = ("--lease-ttl", str(args.lease_ttl))
    names = [f"n{number}" for number in range(args.nodes)]
    with (
        Network(names, directory) as network,
        make(directory, network, args.min, args.hang_timeout, lease) as job,
    ):
        job.start(args.nodes)
        for number, cut in enumerate(plan):
            print(f"{number}: {job.suffer(cut)}", flush=True)
        job.finish()
    print("0 violations, and every agent ended well")


if __name__ == "__main__":
    main()
