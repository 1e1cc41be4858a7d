"""Which versions of accelerate this package was run with."""

from __future__ import annotations

import re
from importlib import metadata

from elastic_runtime.errors import UsageError

# The first two numbers.
OLDEST = (1, 10)
NEWEST = (1, 15)


def check_accelerate() -> None:
    """Refuses an accelerate that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer.
    """
    wanted = f"accelerate {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    remedy = "pip install 'elastic-runtime[accelerate]'"
    try:
        found = metadata.version("accelerate")
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"elastic_runtime.accelerate needs {wanted}, and there is none; {remedy}"
        ) from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not OLDEST <= numbers <= NEWEST:
        raise UsageError(
            f"elastic_runtime.accelerate was run with {wanted}, and this is {found}, which may "
            f"work otherwise; {remedy}"
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
