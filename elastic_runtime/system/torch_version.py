"""Which versions of torch this runs with, what each can do, and what is said of others.

torch is not imported.

``pyproject.toml`` names the same range, and ``docs/torch-versions.md`` shows the jobs that were run
with each version in it; a test compares the three.
"""

from __future__ import annotations

import os
import re
from glob import glob
from importlib import metadata
from importlib.util import find_spec

from elastic_runtime.errors import UsageError

# The oldest and the newest version that jobs were run with (``scripts/torch_versions.py``).
OLDEST = (2, 11)
NEWEST = (2, 15)
# The first one whose groups can get other peers while they live.
_RECONFIGURES = (2, 15)

# How ranks regroup in place (``--regroup``): the same groups get other peers, or new ones are
# built.
AUTO, RECONFIGURE, REBUILD = "auto", "reconfigure", "rebuild"
# Passed on to workers.
ENV_REGROUP = "ELASTIC_REGROUP"


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
    version = installed()
    if not version:
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
    version = installed()
    numbers = read_version(version)
    if numbers is None or numbers <= NEWEST:
        return ""
    return (
        f"torch {version} is newer than {_text(NEWEST)}, the newest that this was tested with: "
        f"if something fails, pip install '{requirement()}'"
    )


def has_gpus() -> bool:
    """Whether this machine has GPUs, as its device files say; no driver is asked."""
    return bool(glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/kfd")


def choose_regroup(wanted: str, version: str, *, gpus: bool) -> str:
    """How the ranks of this node regroup.

    Args:
        wanted: what ``--regroup`` says.
        version: of torch; one that is not known is taken for an old one.
        gpus: there are some. Then it is only done where it is asked for, as ``ProcessGroupNCCL2``,
            which it needs, has not been run with this on a GPU yet.

    Raises:
        UsageError: this torch cannot do it.
    """
    can = (read_version(version) or (0, 0)) >= _RECONFIGURES
    # It wraps all groups into some that cannot.
    wrapped = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    if wanted == AUTO:
        return RECONFIGURE if can and not wrapped and not gpus else REBUILD
    if wanted == RECONFIGURE and not can:
        raise UsageError(
            f"--regroup {RECONFIGURE} needs torch {_text(_RECONFIGURES)} or newer, and here is "
            f"{version or 'one of unknown version'}: leave the option out, or update torch"
        )
    if wanted == RECONFIGURE and wrapped:
        raise UsageError(
            f"--regroup {RECONFIGURE} does not work with TORCH_DISTRIBUTED_DEBUG=DETAIL: leave out "
            "one of them"
        )
    return wanted


def differ(one: str, other: str) -> bool:
    """Whether ranks with these versions of torch cannot form groups together, if both are known."""
    first, second = read_version(one), read_version(other)
    return first is not None and second is not None and first != second


def installed() -> str:
    """The version of the installed torch, "" if it is not known; an import takes over a second."""
    try:
        # Of a distribution that was half removed it is None, whatever the types say.
        return metadata.version("torch") or ""
    except metadata.PackageNotFoundError:
        return ""


def _text(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)
