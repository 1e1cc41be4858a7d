"""Which versions of transformers this package was run with."""

from __future__ import annotations

import re
from importlib import metadata

from elastic_runtime.errors import UsageError

# The first two numbers; the parts of the loop, which are called here, change from one to the next.
OLDEST = (5, 3)
NEWEST = (5, 24)


def check_transformers() -> None:
    """Refuses a transformers that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer, or accelerate is missing.
    """
    wanted = f"transformers {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    remedy = "pip install 'elastic-runtime[transformers]'"
    for package in ("transformers", "accelerate"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"elastic_runtime.transformers needs {wanted} with accelerate, and there is no "
                f"{package}; {remedy}"
            ) from None
    found = metadata.version("transformers")
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not OLDEST <= numbers <= NEWEST:
        raise UsageError(
            f"elastic_runtime.transformers was run with {wanted}, and this is {found}, whose "
            f"Trainer may work otherwise; {remedy}"
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
