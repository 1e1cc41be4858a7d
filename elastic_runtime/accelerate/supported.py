"""Which versions of accelerate this package was run with."""

from __future__ import annotations

from elastic_runtime.trainers.tested_versions import AdapterVersions

VERSIONS = AdapterVersions("accelerate", (1, 10), (1, 15), "which may work otherwise")


def check_accelerate() -> None:
    """Refuses an accelerate that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer.
    """
    VERSIONS.check(", and there is none")
