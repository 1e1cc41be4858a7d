"""Part of a package, run with `-m people.train`; imports its sibling relatively."""

import sys

from . import settings

if __name__ == "__main__":
    print(f"{__name__} in {__package__}: {settings.GREETING}, arguments {sys.argv[1:]}")
