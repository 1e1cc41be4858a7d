"""The description files of a checkpoint, by which a load finds everything in the ranks' files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import crc32c

from elastic_runtime.checkpoint.format import dcp_metadata, outline_file
from elastic_runtime.checkpoint.format.crc_combine import combined_crc
from elastic_runtime.checkpoint.format.manifest import OUTLINE, FileRecord, Part
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.limits import MAX_LISTED_PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.format.write_plan import WritePlan


@dataclass(frozen=True, slots=True)
class DescriptionFile:
    """A file that describes others.

    Attributes:
        name: of the file.
        pieces: its content; each is a part.
    """

    name: str
    pieces: tuple[bytes, ...]

    def record(self) -> FileRecord:
        """What the manifest says of it."""
        parts, offset = [], 0
        for piece in self.pieces:
            parts.append(Part(offset, len(piece), crc32c.crc32c(piece)))
            offset += len(piece)
        return FileRecord(self.name, offset, combined_crc(parts), tuple(parts))


@dataclass(frozen=True, slots=True)
class Described:
    """What makes a checkpoint of the files of the ranks.

    Attributes:
        files: for the manifest: those of the ranks.
        beside: what else is to be written.
    """

    files: tuple[FileRecord, ...]
    beside: tuple[DescriptionFile, ...]


class Description:
    """Describes one save after the other.

    DCP's metadata is kept while the plan and all lengths stay the same: for thousands of small
    tensors, making it would be the longest part of a save. The outline is kept while the plan does.
    """

    def __init__(self, many: int = MAX_LISTED_PARTS) -> None:
        """Begins with nothing kept.

        Args:
            many: with more parts than that they are not listed in the manifest.
        """
        self._many = many
        self._metadata_of: tuple[WritePlan, list[object]] | None = None
        self._metadata = b""
        self._outline_of: WritePlan | None = None
        self._outline = b""

    def describe(
        self, plan: WritePlan, written: Sequence[FileRecord | None], *, for_dcp: bool = True
    ) -> Described:
        """Describes a save.

        Args:
            plan: what each rank was to write.
            written: what each rank has written, one part for each item.
            for_dcp: others than this package read it as well.
        """
        files = tuple(file for file in written if file is not None)
        beside = []
        many = sum(file.items for file in files) > self._many
        if for_dcp or not many:
            beside.append(
                DescriptionFile(dcp_metadata.METADATA, (self._metadata_bytes(plan, written),))
            )
        if many:
            if self._outline_of is not plan:
                self._outline, self._outline_of = outline_file.encode(plan), plan
            sections = (PartColumns.of(file.parts).pack() for file in files)
            beside.append(DescriptionFile(OUTLINE, (self._outline, *sections)))
            files = tuple(file.without_parts() for file in files)
        return Described(files, tuple(beside))

    def _metadata_bytes(self, plan: WritePlan, written: Sequence[FileRecord | None]) -> bytes:
        lengths: list[object] = [file and PartColumns.of(file.parts).lengths for file in written]
        if self._metadata_of != (plan, lengths):
            self._metadata = dcp_metadata.encode(plan, written)
            self._metadata_of = plan, lengths
        return self._metadata
