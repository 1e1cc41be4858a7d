"""Lists of machines, as a file has them or a script prints them: pure.

Both forms that people have are read: ``name:4`` (what a discovery script of Horovod's prints) and
``name slots=4`` (a host file of MPI's).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_runtime.errors import UsageError

# What ssh takes for a host, without what its command line would take for an option.
_NAME = r"(?!-)[A-Za-z0-9._@%+-]+|\[[0-9A-Za-z:.%]+\]"
# MPI's max_slots is for more processes than slots, which there are none of here.
_SLOTS = r"\s+slots\s*=\s*(?P<long>\d{1,4})(?:\s+max_slots\s*=\s*\d{1,9})?"
_LINE = re.compile(rf"(?P<name>{_NAME})(?::(?P<short>\d{{1,4}})|{_SLOTS})?")


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        name: as ssh takes it.
        workers: how many it is to have; 0: as many as all.
    """

    name: str
    workers: int = 0


def read_hosts(text: str, source: str) -> tuple[Host, ...]:
    """Reads a list, one machine in a line; what follows a ``#`` is a comment.

    Args:
        text: the list.
        source: for the error.

    Raises:
        UsageError: a line is none, or names a machine for the second time.
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if not match:
            raise UsageError(
                f"{source}, line {number}: {words!r} is no host: write name, name:4 or name slots=4"
            )
        host = Host(match["name"].strip("[]"), int(match["short"] or match["long"] or 0))
        if host.name in found:
            raise UsageError(f"{source}, line {number}: {host.name} is there twice")
        if (match["short"] or match["long"]) and not host.workers:
            raise UsageError(f"{source}, line {number}: {host.name} has no workers")
        found[host.name] = host
    return tuple(found.values())
