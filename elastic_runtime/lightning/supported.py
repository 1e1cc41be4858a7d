"""Which versions of Lightning this package was run with."""

from __future__ import annotations

import sys
import warnings

from elastic_runtime.trainers.tested_versions import AdapterVersions

# The loops, which are replaced here, change from one version to the next.
VERSIONS = AdapterVersions("lightning", (2, 5), (2, 6), "whose training loop may be another one")


def check_lightning() -> None:
    """Refuses a Lightning that this package was never run with.

    Raises:
        UsageError: there is none, or it is older or newer.
    """
    VERSIONS.check(" (the package lightning, not pytorch-lightning), and there is none")
    if "pytorch_lightning" in sys.modules:
        warnings.warn(
            "pytorch_lightning is imported as well, and a Trainer of that package does not know "
            "the strategies of elastic_runtime.lightning: import all of it from lightning",
            stacklevel=3,
        )
