"""What a checkpoint is on disk: names, the manifest, and which checkpoint is the newest.

A checkpoint is a directory ``step-<n>.term-<t>`` that holds a ``MANIFEST.json``. The manifest is
written last and lists every other file with its size and checksum: a directory without one is the
rest of a save that did not finish, and counts for nothing.

A **term** of a checkpoint directory is like a term in Raft: a number that only grows as long as the
directory exists. A process takes the next term before it saves for the first time. The newest
checkpoint is the one with the highest (term, step), so an outdated writer never wins over a newer
one.

Nothing here needs torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import crc32c

from elastic_runtime.errors import DamagedCheckpoint, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MANIFEST = "MANIFEST.json"
OUTLINE = ".outline"

# In the second one the manifest does not list the parts of the ranks' files: ``.outline`` does.
_FORMATS = (1, 2)

_LAST_SECOND = 253402214400  # the 9999th year ends, and with it what calendars can show
_CHECKPOINT = re.compile(r"step-(\d+)\.term-(\d+)")
_TERM = re.compile(r"term-(\d+)")
_PRUNED = re.compile(r"pruned\.(step-\d+\.term-\d+)")
_ASIDE = re.compile(r"aside\.(step-\d+\.term-\d+)")


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

    @property
    def aside_name(self) -> str:
        """The name of the file that says that it is set aside."""
        return f"aside.{self.name}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Reads the name of a directory; None if it is no checkpoint's."""
        if not (match := _CHECKPOINT.fullmatch(name)):
            return None
        found = cls(term=int(match[2]), step=int(match[1]))
        # Each has one name: "step-007" beside "step-7" would be counted as the same one again.
        return found if found.name == name else None


def term_name(term: int) -> str:
    """The name of the file that says that this term is taken."""
    return f"term-{term}"


def highest_term(names: Iterable[str]) -> int:
    """The highest term in the names of all entries of a checkpoint directory; 0 if there is none.

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
    """The files of terms below ``term``: they are not needed once a higher one is taken."""
    return [name for name in names if (m := _TERM.fullmatch(name)) and int(m[1]) < term]


def newest_first(names: Iterable[str]) -> list[CheckpointId]:
    """The checkpoints among the entries of a directory, whole or not, but for those set aside."""
    present = list(names)
    aside = set(set_aside(present))
    found = (CheckpointId.parse(name) for name in present)
    return sorted((one for one in found if one is not None and one not in aside), reverse=True)


def set_aside(names: Iterable[str]) -> list[CheckpointId]:
    """The checkpoints that are set aside, the newest first.

    The job continued from an older one, or from memory that was older. They are not part of its
    history, and are never loaded; but their content exists nowhere else: only people delete them.
    """
    present = set(names)
    found = (CheckpointId.parse(m[1]) for name in present if (m := _ASIDE.fullmatch(name)))
    return sorted((one for one in found if one and one.name in present), reverse=True)


def left_behind(names: Iterable[str], base: CheckpointId, term: int) -> list[CheckpointId]:
    """The checkpoints of older terms that are not part of the history of a job.

    Args:
        names: the entries of the directory.
        base: the checkpoint that the job continued from: nothing newer is part of its state.
        term: the term of the job.
    """
    return [one for one in newest_first(names) if base < one and one.term < term]


def half_pruned(names: Iterable[str]) -> list[str]:
    """The checkpoints whose deletion began and was not finished."""
    return [name for name in names if _PRUNED.fullmatch(name)]


@dataclass(frozen=True, slots=True)
class Part:
    """One item in a file: what can be read and verified without the rest of the file.

    Attributes:
        offset: where it begins, in bytes from the beginning of the file.
        length: how many bytes it has.
        crc32c: of these bytes, computed while they were written.
        data: where the raw bytes of its tensor begin, in bytes from ``offset``; -1 if it is none.
    """

    offset: int
    length: int
    crc32c: int
    data: int = -1


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint.

    Attributes:
        name: relative to the checkpoint's directory, never with a slash.
        bytes: its length.
        crc32c: of all its bytes, computed while they were written.
        parts: what it consists of, in the order of the file and without gaps.
        unlisted: how many parts it has that are listed in ``.outline`` instead.
    """

    name: str
    bytes: int
    crc32c: int
    parts: Sequence[Part] = ()
    unlisted: int = 0

    @property
    def items(self) -> int:
        """How many parts it has."""
        return self.unlisted or len(self.parts)

    def without_parts(self) -> FileRecord:
        """The same, with its parts listed elsewhere."""
        return FileRecord(self.name, self.bytes, self.crc32c, unlisted=self.items)

    def encode(self) -> dict[str, Any]:
        """Plain JSON. Where a part begins follows from the lengths of those before it."""
        body = {"name": self.name, "bytes": self.bytes, "crc32c": self.crc32c}
        if self.unlisted:
            return {**body, "unlisted": self.unlisted}
        parts = [[part.length, part.crc32c, part.data] for part in self.parts]
        return {**body, "parts": parts}

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> Self:
        """Reads what ``encode`` gave.

        Raises:
            ValueError: it cannot be a file of a checkpoint; or another error for what is no file.
        """
        parts = []
        end = 0
        unlisted = int(body.get("unlisted", 0))
        for length, crc, data in () if unlisted else body["parts"]:
            part = Part(end, int(length), int(crc), int(data))
            if part.length < 0 or not -1 <= part.data <= part.length:
                raise ValueError("a part that cannot be")
            parts.append(part)
            end += part.length
        if unlisted < 0:
            raise ValueError("fewer parts than none")
        size, crc = int(body["bytes"]), int(body["crc32c"])
        file = cls(str(body["name"]), size, crc, tuple(parts), unlisted)
        if "/" in file.name or file.name in ("", ".", ".."):
            raise ValueError("a file outside the checkpoint")
        if parts and end != file.bytes:
            raise ValueError("parts that are not the whole file")
        return file


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step, term: which one it is.
        world: how many ranks wrote it.
        round: the round that wrote it, 0 outside ``elastic-run``.
        entries: the names of the objects of the State, in order.
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

    def sections(self) -> dict[str, Part]:
        """Which part of ``.outline`` lists the parts of a file, by the name of that file.

        Raises:
            ValueError: they do not belong together; no manifest that was decoded is like that.
        """
        outlines = [file.parts for file in self.files if file.name == OUTLINE]
        listed = [part for parts in outlines for part in parts]
        names = [file.name for file in self.files if file.unlisted]
        if len(listed) != len(names) + len(outlines[:1]):
            raise ValueError("not a section for each file")
        return dict(zip(names, listed[1:], strict=True))

    def encode(self) -> bytes:
        """JSON for people to read, with a checksum of its own content."""
        # The older format wherever it will do: older versions of this package read it as well.
        newer = any(file.unlisted for file in self.files)
        body: dict[str, Any] = {"format": _FORMATS[newer]}
        body |= {field.name: getattr(self, field.name) for field in fields(self)}
        body["files"] = [file.encode() for file in self.files]
        body["crc32c"] = _body_crc(body)
        # One line for each file: a part is a few numbers, and there may be many thousands.
        lines = {key: json.dumps(value) for key, value in body.items()}
        lines["files"] = "[" + ",".join("\n  " + json.dumps(file) for file in body["files"]) + "]"
        text = ",\n".join(f" {json.dumps(key)}: {value}" for key, value in lines.items())
        return f"{{\n{text}\n}}\n".encode()

    @classmethod
    def decode(cls, where: str, data: bytes) -> Self:
        """Reads what ``encode`` wrote.

        Args:
            where: the manifest's path, for the error.
            data: its bytes.

        Raises:
            UnknownFormat: it is whole, but of a format of the future.
            DamagedCheckpoint: it is not what was written.
        """
        try:
            body = json.loads(data)
            if body.pop("crc32c") != _body_crc(body):
                raise DamagedCheckpoint(f"{where} is damaged: its checksum does not match")
            if body["format"] not in _FORMATS:
                raise UnknownFormat(
                    f"{where} has format {body['format']!r}, and this version of elastic-runtime "
                    f"reads {_FORMATS[-1]} and older: upgrade it, or move that checkpoint away to "
                    "continue from an older one"
                )
            return cls._build(body)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            raise DamagedCheckpoint(f"{where} is damaged: it is not a manifest") from None

    @classmethod
    def _build(cls, body: Mapping[str, Any]) -> Self:
        files = tuple(FileRecord.decode(file) for file in body["files"])
        if not 0 <= body["saved_at"] < _LAST_SECOND:
            raise ValueError("a time that no clock shows")
        made = cls(
            step=int(body["step"]),
            term=int(body["term"]),
            world=int(body["world"]),
            round=int(body["round"]),
            entries=tuple(str(name) for name in body["entries"]),
            files=files,
            saved_at=float(body["saved_at"]),
        )
        made.sections()  # compares the files with each other
        return made


def _body_crc(body: Mapping[str, Any]) -> int:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return int(crc32c.crc32c(canonical))
