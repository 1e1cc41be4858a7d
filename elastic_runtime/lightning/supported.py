"""Which versions of Lightning this package was run with."""

from __future__ import annotations

import re
import sys
import warnings
from importlib import metadata

from elastic_runtime.errors import UsageError

# The first two numbers; the loops, which are replaced here, change from one to the next.
OLDEST = (2, 5)
NEWEST = (2, 6)


def check_lightning() -> None:
    """Refuses a Lightning that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer.
    """
    wanted = f"lightning {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    remedy = "pip install 'elastic-runtime[lightning]'"
    try:
        found = metadata.version("lightning")
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"elastic_runtime.lightning needs {wanted} (the package lightning, not "
            f"pytorch-lightning), and there is none; {remedy}"
        ) from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not OLDEST <= numbers <= NEWEST:
        raise UsageError(
            f"elastic_runtime.lightning was run with {wanted}, and this is {found}, whose training "
            f"loop may be another one; {remedy}"
        )

    if "pytorch_lightning" in sys.modules:
        warnings.warn(
            "pytorch_lightning is imported as well, and a Trainer of that package does not know "
            "the strategies of elastic_runtime.lightning: import all of it from lightning",
            stacklevel=3,
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
