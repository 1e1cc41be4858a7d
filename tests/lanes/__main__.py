"""Says what the present commit has to pass beside the quick lane, and writes it to a file.

    python -m tests.lanes FILE

``scripts/test --also FILE`` runs it; a line that is no test (``torch 2.15``) is for ``.ci/run``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lanes import changes, seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterable


def main(file: Path) -> None:
    """Chooses, says so, and writes the chosen pieces."""
    rest = seconds.rest_of(seconds.read(seconds.TABLE.read_text()), changes.test_files())
    groups = [{*map(seconds.piece_of, group)} for group in changes.touched(changes.changed_paths())]
    chosen = share.choose(rest, groups, changes.commit_time())

    def tell(what: str, pieces: Iterable[str]) -> None:
        pieces = sorted(pieces)
        print(f"{what}: {len(pieces)} pieces, {sum(rest[it] for it in pieces):.0f} s of processor")
        named = [piece for piece in pieces if rest[piece] > seconds.LEAST_S]
        print("".join(f"  {rest[piece]:5.0f} s  {piece}\n" for piece in named), end="")

    tell("beside the quick lane, what the last day of commits touches", chosen.touched)
    turn = f"share {chosen.number + 1} of {chosen.shares}, and what fits"
    tell(f"beside the quick lane, {turn}", chosen.turn)
    tell("left out here (scripts/test --all runs it)", chosen.left_out)
    file.write_text("".join(f"{piece}\n" for piece in chosen.chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument("file", type=Path, help="where to write what is to run")
    try:
        main(parser.parse_args().file)
    except OSError as error:
        sys.exit(f"tests.lanes: {error}")
