"""What a checkpoint is on disk: names, the manifest, and which checkpoint is the newest.

A checkpoint is a directory ``step-<n>.term-<t>`` that holds a ``MANIFEST.json``. The manifest is
written last and lists every other file with its size and checksum: a directory without one is the
rest of a save that did not finish, and counts for nothing.

A **term** is to a checkpoint directory what a term is to Raft. It only grows over the whole life
of the directory, and the one who saves takes the next one first. The newest checkpoint is the one
with the highest (term, step), so a writer that was left behind can never win over a newer one.

Nothing here needs torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import crc32c

from elastic_runtime.errors import DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = 1
MANIFEST = "MANIFEST.json"

_CHECKPOINT = re.compile(r"step-(\d+)\.term-(\d+)")
_TERM = re.compile(r"term-(\d+)")
_PRUNED = re.compile(r"pruned\.(step-\d+\.term-\d+)")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Which checkpoint; the greater one is the newer one."""

    term: int
    step: int

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"step-{self.step}.term-{self.term}"

    @property
    def pruned_name(self) -> str:
        """The name of its directory while it is being deleted."""
        return f"pruned.{self.name}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Reads the name of a directory; None if it is no checkpoint's."""
        match = _CHECKPOINT.fullmatch(name)
        return cls(term=int(match[2]), step=int(match[1])) if match else None


def term_name(term: int) -> str:
    """The name of the file that says that this term is taken."""
    return f"term-{term}"


def highest_term(names: Iterable[str]) -> int:
    """The highest term that any entry of a checkpoint directory speaks of; 0 if none does.

    Args:
        names: the entries of the directory.
    """
    highest = 0
    for name in names:
        if match := _TERM.fullmatch(name):
            highest = max(highest, int(match[1]))
        elif found := CheckpointId.parse(name):
            highest = max(highest, found.term)
    return highest


def older_terms(names: Iterable[str], term: int) -> list[str]:
    """The files of terms below ``term``: nobody needs them once a higher one is taken."""
    return [name for name in names if (m := _TERM.fullmatch(name)) and int(m[1]) < term]


def newest_first(names: Iterable[str]) -> list[CheckpointId]:
    """The checkpoints among the entries of a directory, whole or not."""
    found = (CheckpointId.parse(name) for name in names)
    return sorted((one for one in found if one is not None), reverse=True)


def half_pruned(names: Iterable[str]) -> list[str]:
    """The checkpoints that somebody began to delete and did not finish."""
    return [name for name in names if _PRUNED.fullmatch(name)]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint.

    Attributes:
        name: relative to the checkpoint's directory, never with a slash.
        bytes: its length.
        crc32c: of all its bytes, computed while they were written.
    """

    name: str
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step, term: which one it is.
        world: how many ranks wrote it.
        round: the round that wrote it, 0 outside ``elastic-run``.
        entries: the names that were given to the ``Checkpointer``, in order.
        files: everything else in the directory, DCP's ``.metadata`` included.
        saved_at: seconds since the epoch, to be shown and never compared.
    """

    step: int
    term: int
    world: int
    round: int = 0
    entries: tuple[str, ...] = ()
    files: tuple[FileRecord, ...] = ()
    saved_at: float = 0.0

    @property
    def id(self) -> CheckpointId:
        """Which checkpoint it is."""
        return CheckpointId(term=self.term, step=self.step)

    def encode(self) -> bytes:
        """JSON for people to read, sealed with a checksum of its own content."""
        body: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        body["crc32c"] = _seal(body)
        return (json.dumps(body, indent=1) + "\n").encode()

    @classmethod
    def decode(cls, where: str, data: bytes) -> Self:
        """Reads what ``encode`` wrote.

        Args:
            where: the manifest's path, for the error.
            data: its bytes.

        Raises:
            DamagedCheckpoint: it is not what was written, or of a format of the future.
        """
        try:
            body = json.loads(data)
            if body["format"] != FORMAT:
                raise DamagedCheckpoint(
                    f"{where} has format {body['format']!r}; this version reads {FORMAT}"
                )
            if body.pop("crc32c") != _seal(body):
                raise DamagedCheckpoint(f"{where} is damaged: its checksum does not match")
            return cls._build(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DamagedCheckpoint(f"{where} is damaged: it is not a manifest") from None

    @classmethod
    def _build(cls, body: Mapping[str, Any]) -> Self:
        files = tuple(
            FileRecord(str(f["name"]), int(f["bytes"]), int(f["crc32c"])) for f in body["files"]
        )
        if any("/" in file.name or file.name in ("", ".", "..") for file in files):
            raise ValueError("a file outside the checkpoint")
        return cls(
            step=int(body["step"]),
            term=int(body["term"]),
            world=int(body["world"]),
            round=int(body["round"]),
            entries=tuple(str(name) for name in body["entries"]),
            files=files,
            saved_at=float(body["saved_at"]),
        )


def _seal(body: Mapping[str, Any]) -> int:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return int(crc32c.crc32c(canonical))


def verification_shares(files: Iterable[FileRecord], world: int) -> list[list[FileRecord]]:
    """Spreads the reading of all files evenly over the ranks, the same on every rank.

    Args:
        files: of one checkpoint.
        world: how many ranks take part.

    Returns:
        What each rank verifies.
    """
    loads = [0] * world
    shares: list[list[FileRecord]] = [[] for _ in range(world)]
    for file in sorted(files, key=lambda f: (-f.bytes, f.name)):
        rank = loads.index(min(loads))
        loads[rank] += file.bytes
        shares[rank].append(file)
    return shares
