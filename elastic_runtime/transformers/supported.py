"""Which versions of transformers this package was run with."""

from __future__ import annotations

from importlib import metadata

from elastic_runtime.trainers.tested_versions import AdapterVersions

# The parts of the loop, which are called here, change from one version to the next.
VERSIONS = AdapterVersions("transformers", (5, 3), (5, 24), "whose Trainer may work otherwise")


def check_transformers() -> None:
    """Refuses a transformers that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer, or accelerate is missing.
    """
    VERSIONS.check(" with accelerate, and there is no transformers")
    try:
        metadata.version("accelerate")
    except metadata.PackageNotFoundError:
        raise VERSIONS.missing(" with accelerate, and there is no accelerate") from None
