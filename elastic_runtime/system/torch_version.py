"""Which versions of torch this runs with, and what is said of others; torch is not imported.

``pyproject.toml`` names the same range, and ``docs/torch-versions.md`` shows the jobs that were run
with each version in it; a test compares the three.
"""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

from elastic_runtime.errors import UsageError

# The oldest and the newest version that jobs were run with (``scripts/torch_versions.py``).
OLDEST = (2, 11)
NEWEST = (2, 15)


def requirement() -> str:
    """What pip is to install: ``torch>=2.11,<2.16``."""
    major, minor = NEWEST
    return f"torch>={_text(OLDEST)},<{major}.{minor + 1}"


def read_version(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None if it does not begin with two.

    What follows them (``.0+cpu``, ``.0.dev20260101``, ``a0+git1a2b``) does not matter here.

    Args:
        text: as the package's metadata have it.
    """
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def refuse_unsupported() -> None:
    """Refuses to go on where no torch is installed, or one that is too old.

    Raises:
        UsageError: with what to install.
    """
    version = _installed()
    if version is None:
        if find_spec("torch") is None:
            raise UsageError(f"torch is not installed here: pip install '{requirement()}'")
        return  # a build without metadata: nobody knows
    numbers = read_version(version)
    if numbers is not None and numbers < OLDEST:
        raise UsageError(
            f"torch {version} is too old, as {_text(OLDEST)} is the oldest that this works with: "
            f"pip install '{requirement()}'"
        )


def untested() -> str:
    """What there is to say about a torch that is newer than all that jobs were run with; or ""."""
    version = _installed() or ""
    numbers = read_version(version)
    if numbers is None or numbers <= NEWEST:
        return ""
    return (
        f"torch {version} is newer than {_text(NEWEST)}, the newest that this was tested with: "
        f"if something fails, pip install '{requirement()}'"
    )


def _installed() -> str | None:
    """The version of the installed torch, without an import, which takes more than a second."""
    try:
        # Of a distribution that was half removed it is None, whatever the types say.
        return metadata.version("torch") or None
    except metadata.PackageNotFoundError:
        return None


def _text(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)
