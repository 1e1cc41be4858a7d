"""Which versions of torchtitan this package was run with."""

from __future__ import annotations

from elastic_runtime.trainers.tested_versions import AdapterVersions

VERSIONS = AdapterVersions("torchtitan", (0, 3), (0, 3), "whose parts may be others")


def check_torchtitan() -> None:
    """Refuses a torchtitan that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer.
    """
    VERSIONS.check(", and there is none")
