"""File systems of a test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A small file system in memory; skips the test where none may be mounted.

    Args:
        place: where; made.
        size: such as ``256k``.
    """
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def with_a_read_only_root(command: list[str]) -> list[str]:
    """The command for a process that can write nowhere but in ``/dev``, as in some containers.

    Skips the test where there are no mounts of its own.
    """
    remount = "mountpoint -q $d && mount -o remount,bind,ro $d"
    script = (
        f"mount --make-rprivate /; for d in / /tmp /var/tmp /usr/tmp; do {remount}; done; "
        'touch /tmp/here 2>/dev/null && exit 1; exec "$@"'
    )
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if (
        os.geteuid()
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("nothing can be mounted here")
    return [*prefix, *command]


class Disk:
    """A real file system in a file, which can be frozen: whoever writes then waits, and cannot be
    killed either.

    Attributes:
        place: where it is mounted.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Has every write wait meanwhile, as a server of files does that does not answer."""
        subprocess.run(["fsfreeze", "--freeze", str(self.place)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.place)], check=True)


@contextmanager
def disk(place: Path) -> Iterator[Disk]:
    """A disk of 64 MiB; skips the test where none may be mounted.

    Args:
        place: where; made, and its image beside it.
    """
    place.mkdir()
    image = place.with_name(f"{place.name}.img")
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    commands = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)])
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("mkfs.ext4", "fsfreeze")):
        pytest.skip("nothing can be mounted here")
    for command in commands:
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
