"""Imports a module beside it, looks at `sys.argv`, guards its main part, pickles its own class."""

import inspect
import os
import pickle
import sys
from dataclasses import dataclass

from neighbour import ANSWER


@dataclass
class Point:
    x: int


def main() -> None:
    print(f"neighbour says {ANSWER}")
    print(f"argv {os.path.basename(sys.argv[0])} {sys.argv[1:]}")
    print(f"pickled {pickle.loads(pickle.dumps(Point(7))).x}")
    print(f"source {inspect.getsource(Point).splitlines()[0]}")
    print(f"file {os.path.basename(__file__)}, directory {os.path.basename(sys.path[0])}")


if __name__ == "__main__":
    main()
