"""How much memory and how many cores there are, and which machine it is. Linux only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def boot_id() -> str:
    """Tells machines apart, and is the same for all containers of one."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def own_cores() -> int:
    """This process' share of the cores: ranks of one node that take more take it from each other.

    At least 1. The launcher says how many ranks there are (``LOCAL_WORLD_SIZE``).
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // int(ranks)) if ranks.isdecimal() and int(ranks) else cores


def total_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's."""
    total = _meminfo("MemTotal")
    return min([total, *(limit for limit, _ in _limits())])


def available_memory() -> int:
    """Bytes that can be taken without anything being swapped out or ended for it."""
    return max(0, min([_meminfo("MemAvailable"), *(limit - used for limit, used in _limits())]))


def _meminfo(name: str) -> int:
    for line in _MEMORY.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return 0


def _limits() -> list[tuple[int, int]]:
    """The limit of each control group (version 2) that this process is in, and what is used."""
    found = []
    with suppress(OSError, ValueError):
        own = _OWN_GROUP.read_text().strip().rpartition("::")[2].lstrip("/")
        group = _GROUPS / own
        while group.is_relative_to(_GROUPS):
            found.extend(_limit(group))
            group = group.parent
    return found


def _limit(group: Path) -> list[tuple[int, int]]:
    try:
        limit = int((group / "memory.max").read_text())  # "max" if there is none
        used = int((group / "memory.current").read_text())
        cache = [
            int(line.split()[1])
            for line in (group / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        ]
    except (OSError, ValueError):
        return []
    return [(limit, used - sum(cache))]
