"""The files that describe a checkpoint: which there are, and when they are made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from elastic_runtime.checkpoint.format import dcp_metadata, outline_file
from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.description import Description, DescriptionFile
from elastic_runtime.checkpoint.format.manifest import OUTLINE, FileRecord, Part
from elastic_runtime.checkpoint.save import staging
from tests.checkpoints import plan_of

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.format.write_plan import WritePlan


def a_plan() -> WritePlan:
    return plan_of([[staging.describe(key, torch.ones(2)) for key in "ab"]])


def a_file(length: int = 8) -> FileRecord:
    parts = (Part(0, 8, 1), Part(8, length, 2))
    return FileRecord("rank-0.distcp", 8 + length, 3, parts)


@pytest.mark.parametrize(
    ("many", "for_dcp", "names"),
    [
        (2, True, [METADATA]),
        (2, False, [METADATA]),
        (1, True, [METADATA, OUTLINE]),
        (1, False, [OUTLINE]),  # in memory, where only this package reads it
    ],
)
def test_many_parts_are_not_listed_in_the_manifest(
    many: int, for_dcp: bool, names: list[str]
) -> None:
    described = Description(many).describe(a_plan(), [a_file()], for_dcp=for_dcp)
    assert [file.name for file in described.beside] == names
    (file,) = described.files
    assert bool(file.parts) == (OUTLINE not in names)


def test_what_the_manifest_says_of_a_description_is_so() -> None:
    record = DescriptionFile("x", (b"one", b"", b"three")).record()
    whole = DescriptionFile("x", (b"onethree",)).record()
    assert (record.bytes, record.crc32c) == (8, whole.crc32c)
    assert [(part.offset, part.length) for part in record.parts] == [(0, 3), (3, 0), (3, 5)]


def test_a_rank_that_has_written_nothing_is_in_no_list() -> None:
    assert Description().describe(a_plan(), [a_file(), None]).files == (a_file(),)


def test_descriptions_are_made_anew_only_when_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    for name, module in (("metadata", dcp_metadata), ("outline", outline_file)):
        encode = module.encode

        def noted(*args: object, name: str = name, encode: object = encode) -> bytes:
            made.append(name)
            return encode(*args)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(module, "encode", noted)
    description, plan = Description(1), a_plan()
    first = description.describe(plan, [a_file()])
    assert description.describe(plan, [a_file()]) == first
    assert made == ["metadata", "outline"]
    description.describe(plan, [a_file(length=16)])
    assert made == ["metadata", "outline", "metadata"], "a length is in DCP's metadata only"
    description.describe(a_plan(), [a_file(length=16)])
    assert made[3:] in (["outline"], ["metadata", "outline"])
