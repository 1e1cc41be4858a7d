"""The files that describe a checkpoint: for DCP and for us; of them nothing is believed."""

from __future__ import annotations

import json
import pickle
import pickletools
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint import metadata as dcp

from elastic_runtime.checkpoint.format import dcp_metadata, outline_file
from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.description import Description, DescriptionFile
from elastic_runtime.checkpoint.format.manifest import (
    MANIFEST,
    OUTLINE,
    CheckpointId,
    FileRecord,
    Manifest,
    Part,
)
from elastic_runtime.checkpoint.format.metadata_reader import read_contents
from elastic_runtime.checkpoint.format.part_columns import read_parts
from elastic_runtime.checkpoint.format.rank_outline import EvenCut, Item, chunk_of
from elastic_runtime.checkpoint.format.stored_items import StoredTensor, StoredValue
from elastic_runtime.checkpoint.load.load_run import contents_of
from elastic_runtime.checkpoint.save import staging
from elastic_runtime.checkpoint.storage.catalog import inspect_checkpoint, verify
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.system.torch_formats import dcp_stored_item
from tests import small_checkpoints
from tests.checkpoints import plan_of, sharded, write
from tests.hostile import manifest_of, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.checkpoint.storage.storage_contract import Storage


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


def test_descriptions_are_made_anew_only_when_something_has_changed() -> None:
    description, plan = Description(1), a_plan()
    with (
        patch.object(dcp_metadata, "encode", wraps=dcp_metadata.encode) as metadata,
        patch.object(outline_file, "encode", wraps=outline_file.encode) as outline,
    ):
        first = description.describe(plan, [a_file()])
        assert description.describe(plan, [a_file()]) == first
        assert (metadata.call_count, outline.call_count) == (1, 1)
        description.describe(plan, [a_file(length=16)])
        made = metadata.call_count, outline.call_count
        assert made == (2, 1), "a length is in DCP's metadata only"
        description.describe(a_plan(), [a_file(length=16)])
        assert outline.call_count == 2


# A checkpoint of many parts is described in few bytes, of which nothing is believed


WHOLE = torch.arange(2100.0).reshape(700, 3)


def saved(path: Path) -> Path:
    """The directory of a checkpoint of three ranks that has an outline."""
    ranks: list[dict[str, Any]] = [
        {"w": shard, "v": torch.ones(4), f"rng.rank-{rank}": rank}
        for rank, shard in enumerate(sharded(WHOLE, 0, 3))
    ]
    ranks[0]["step"] = 5
    return path / write(LocalStorage(path), ranks, many=0).name


def found(checkpoint: Path, wanted: Mapping[str, Chunk | None]) -> Mapping[str, Any]:
    storage = LocalStorage(checkpoint.parent)
    return contents_of(storage, manifest_of(checkpoint)).find(wanted)


def pieces_of(checkpoint: Path) -> list[bytes]:
    """The head of the outline, and the section of each rank."""
    (record,) = (file for file in manifest_of(checkpoint).files if file.name == OUTLINE)
    content = (checkpoint / OUTLINE).read_bytes()
    return [content[part.offset : part.offset + part.length] for part in record.parts]


def change(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Changes what the outline says, and seals it again."""
    head, *sections = pieces_of(checkpoint)
    body = json.loads(head)
    change(body)
    put(checkpoint, [json.dumps(body).encode(), *sections])


def put(checkpoint: Path, pieces: list[bytes]) -> None:
    """Replaces the outline."""
    storage, which = LocalStorage(checkpoint.parent), manifest_of(checkpoint).id
    (checkpoint / OUTLINE).unlink()
    seal(checkpoint, small_checkpoints.write(storage, which, OUTLINE, *pieces))


def test_it_says_what_there_is_and_where(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    storage, manifest = LocalStorage(tmp_path), manifest_of(checkpoint)
    contents = contents_of(storage, manifest)
    assert contents.stored == {
        "w": StoredTensor((700, 3), torch.float32),
        "v": StoredTensor((4,), torch.float32),
        **{key: StoredValue() for key in ("step", "rng.rank-0", "rng.rank-1", "rng.rank-2")},
    }
    there = contents.find({"w": Chunk((233, 0), (2, 3)), "step": None, "rng.rank-2": None})
    assert [*there] == ["w", "step", "rng.rank-2"]
    tensor, step, own = there.values()
    assert isinstance(tensor, StoredTensor)
    assert [piece.file for piece in tensor.pieces] == ["rank-0.distcp", "rank-1.distcp"]
    assert isinstance(step, StoredValue)
    assert isinstance(own, StoredValue)
    assert (step.file, own.file) == ("rank-0.distcp", "rank-2.distcp")


def test_only_the_sections_that_are_needed_are_read(tmp_path: Path) -> None:
    """A rank that loads reads the same however many there were."""
    checkpoint = saved(tmp_path)
    first, one, two, three = pieces_of(checkpoint)
    (checkpoint / OUTLINE).write_bytes(b"".join([first, one, bytes(len(two)), three]))
    assert found(checkpoint, {"w": Chunk((0, 0), (234, 3))})["w"].pieces
    with pytest.raises(DamagedCheckpoint, match=r"\.outline is damaged: its checksum"):
        found(checkpoint, {"w": Chunk((0, 0), (235, 3))})


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    path = checkpoint / OUTLINE
    content = path.read_bytes()
    everything: dict[str, Chunk | None] = {"w": Chunk.of((700, 3))}
    assert len(found(checkpoint, everything)["w"].pieces) == 3
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(DamagedCheckpoint, match=r"\.outline is damaged: its checksum"):
            found(checkpoint, everything)
    path.write_bytes(content[:-1])
    with pytest.raises(DamagedCheckpoint, match=r"\.outline is damaged: it ends at byte"):
        found(checkpoint, everything)


HUGE = 1 << 50


def _row(body: Any, key: str) -> Any:
    return next(row for schema in body["schemas"] for row in schema if row[0] == key)


def _of_all(body: Any, key: str, field: int, value: Any) -> None:
    for schema in body["schemas"]:
        for row in schema:
            if row[0] == key:
                row[field] = value


@pytest.mark.parametrize(
    ("change_it", "text"),
    [
        (lambda body: body.clear(), "KeyError"),
        (lambda body: body["ranks"].pop(), "w is not stored as a whole"),
        (lambda body: body["ranks"].append(body["ranks"][0]), "rank 3 has not written"),
        (lambda body: body["shares"].__setitem__(0, "f" * 100_000), "written more than it had"),
        (lambda body: body["shares"].__setitem__(0, "1"), "rank 0 has not written"),
        (lambda body: body["shares"].__setitem__(0, 7), "TypeError"),
        (lambda body: body["ranks"][0].__setitem__(0, 99), "IndexError"),
        (lambda body: _row(body, "w").__setitem__(3, [700, 4]), "its ranks disagree about w"),
        (lambda body: _of_all(body, "w", 3, [HUGE, HUGE]), "no tensor has the sizes"),
        (lambda body: _of_all(body, "w", 3, [-700, -3]), "no tensor has the sizes"),
        (lambda body: _of_all(body, "w", 3, [700.0, 3]), "where int should be"),
        (lambda body: _of_all(body, "w", 3, [7000, 3]), "w is larger than what is stored"),
        (lambda body: _of_all(body, "w", 2, "load"), "where dtype should be"),
        (lambda body: _of_all(body, "w", 2, "complex128"), "w is larger than what is stored"),
        (lambda body: _of_all(body, "w", 2, ["float32"]), "TypeError"),
        (lambda body: _of_all(body, "w", 2, ""), "w is not stored as a whole"),
        (lambda body: _of_all(body, "w", 0, 5), "where str should be"),
        (lambda body: _of_all(body, "v", 0, "w"), "its ranks disagree about w"),
        (lambda body: body["cuts"][0].__setitem__(0, [[[0, 0, 0]]]), "ZeroDivisionError"),
        (lambda body: body["cuts"][0].__setitem__(0, [[[9, 3, 0]]]), "IndexError"),
        (lambda body: body["cuts"][0].__setitem__(0, [[1], [3]]), "w has a piece"),
        (lambda body: body["cuts"][0].__setitem__(0, [[690, 0], [234, 3]]), "lies outside of it"),
    ],
)
def test_what_does_not_describe_the_files_is_refused(
    tmp_path: Path, change_it: Callable[[Any], None], text: str
) -> None:
    checkpoint = saved(tmp_path)
    change(checkpoint, change_it)
    with pytest.raises(DamagedCheckpoint, match=rf"\.outline is refused: .*({text})"):
        found(checkpoint, {"w": Chunk.of((700, 3))})


@pytest.mark.parametrize("data", [b"", b"garbage", b"3", b"[" * 100_000, b"\xff\xfe", b"9" * 9999])
def test_what_is_no_outline_is_refused(tmp_path: Path, data: bytes) -> None:
    checkpoint = saved(tmp_path)
    put(checkpoint, [data, *pieces_of(checkpoint)[1:]])
    with pytest.raises(DamagedCheckpoint, match=r"\.outline is refused"):
        found(checkpoint, {})


def test_sections_that_are_not_those_of_the_files_are_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    first, one, two, three = pieces_of(checkpoint)
    put(checkpoint, [first, three, two, one])
    with pytest.raises(DamagedCheckpoint, match="does not say what rank-0"):
        found(checkpoint, {"w": Chunk.of((700, 3))})
    put(checkpoint, [first, one, two])
    with pytest.raises(DamagedCheckpoint, match="it is not a manifest"):
        manifest_of(checkpoint)


def test_a_manifest_without_parts_needs_an_outline(tmp_path: Path) -> None:
    file = FileRecord("rank-0.distcp", 5, 1, unlisted=2)
    empty = FileRecord(OUTLINE, 0, 0)
    for files in ((file,), (file, empty), (empty,), (replace(file, unlisted=-1),)):
        data = Manifest(step=1, term=1, world=1, files=files).encode()
        with pytest.raises(DamagedCheckpoint, match="not a manifest"):
            Manifest.decode("here", data)


def test_few_parts_are_listed_as_older_versions_know_it(tmp_path: Path) -> None:
    """Those refuse the other format and say why."""
    path = saved(tmp_path)
    assert json.loads((path / MANIFEST).read_bytes())["format"] == 2
    shards = [{"w": shard} for shard in sharded(WHOLE, 0, 3)]
    path = tmp_path / write(LocalStorage(tmp_path), shards, step=2).name
    assert json.loads((path / MANIFEST).read_bytes())["format"] == 1
    assert not (path / OUTLINE).exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_dcp_reads_it(tmp_path: Path) -> None:
    state = {"w": torch.zeros(700, 3), "v": torch.zeros(4)}
    torch_dcp.load(
        state,
        storage_reader=torch_dcp.FileSystemReader(saved(tmp_path)),
        planner=torch_dcp.DefaultLoadPlanner(flatten_state_dict=False),
        no_dist=True,
    )
    assert torch.equal(state["w"], WHOLE)
    assert state["v"].tolist() == [1, 1, 1, 1]


def test_verify_reads_parts_that_the_manifest_does_not_list(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    storage, manifest = LocalStorage(tmp_path), manifest_of(checkpoint)
    (file,) = (one for one in manifest.files if one.name == "rank-1.distcp")
    parts = read_parts(storage, manifest, [file.name])[file.name]
    assert verify(storage, manifest) == []
    where = {file.name: f"bytes {parts[-1].offset} to {file.bytes}", OUTLINE: "bytes"}
    for name, text in where.items():
        path = checkpoint / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        problems = verify(storage, manifest)
        assert any(f"{path} is damaged: {text}" in problem for problem in problems)
    # Without its parts a file is compared as a whole.
    assert len(problems) == 2
    assert f"bytes 0 to {file.bytes}" in problems[0]


def test_what_an_unfinished_save_has_left_of_it_is_ours(storage: Storage) -> None:
    which = CheckpointId(term=1, step=1)
    storage.create(which)
    small_checkpoints.write(storage, which, OUTLINE, b"half")
    assert inspect_checkpoint(storage, which).foreign == ()


# What DCP is told is what its own objects would say


GIB = 1 << 30


def held(rank: int, world: int, tensors: int) -> list[Item]:
    """Tensors that are whole on all ranks, or cut along one dimension, and values."""
    found = []
    for number in range(tensors):
        shape = (5, 3 + number % 2)
        cuts = (EvenCut(0, world, rank), EvenCut(1, world, rank), None)
        cut = cuts[number % 3]
        offsets, sizes = chunk_of((cut,) if cut else (), shape)
        dtype = ("float32", "bfloat16")[number % 2]
        found.append(Item(f"w{number}", dtype, shape, offsets, sizes, 4))
    found.append(Item("scalar", "int64", (), (), (), 8))
    found.append(Item(f"rng.rank-{rank}"))
    return found if rank else [*found, Item("step")]


def objects(plan: Any, files: list[FileRecord]) -> dcp.Metadata:
    """The same, made of the classes that DCP has for it."""
    described: dict[str, Any] = {}
    places: dict[dcp.MetadataIndex, Any] = {}
    for rank, file in enumerate(files):
        for item, part in zip(plan.file(rank), file.parts, strict=True):
            place = dcp_stored_item()(file.name, part.offset, part.length)
            if not item.dtype:
                described[item.key] = dcp.BytesStorageMetadata()
                places[dcp.MetadataIndex(item.key)] = place
                continue
            properties = dcp.TensorProperties(dtype=getattr(torch, item.dtype))
            whole = dcp.TensorStorageMetadata(properties, torch.Size(item.shape), [])
            chunks = described.setdefault(item.key, whole).chunks
            places[dcp.MetadataIndex(item.key, item.offsets, len(chunks))] = place
            chunk = dcp.ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes))
            chunks.append(chunk)
    return dcp.Metadata(described, storage_data=places)


@pytest.mark.parametrize(
    ("world", "tensors", "length"),
    [
        (1, 0, 128),
        (1, 9, 128),
        (3, 9, 128),
        (7, 9, 3 * GIB),
        (3, 400, 128),
    ],  # more than a byte numbers
)
def test_the_pickle_is_that_of_the_objects(world: int, tensors: int, length: int) -> None:
    plan = plan_of([held(rank, world, tensors) for rank in range(world)])
    files = []
    for rank, sizes in enumerate(plan.sizes):
        parts = [
            Part(at * length, length, 1, 8 if size >= 0 else -1) for at, size in enumerate(sizes)
        ]
        files.append(FileRecord(f"rank-{rank}.distcp", len(parts) * length, 1, tuple(parts)))
    content, expected = dcp_metadata.encode(plan, files), objects(plan, files)
    found = pickle.loads(content)
    assert found == expected
    # An index is compared without its number, and objects without what they have beside.
    states = [
        [(vars(key), vars(place)) for key, place in each.storage_data.items()]
        for each in (found, pickle.loads(pickle.dumps(expected)))
    ]
    assert states[0] == states[1]
    assert read_contents("", content, files) == read_contents("", pickle.dumps(expected), files)


# What is looked for in a pickle before anything is made of it


PUT_FAR = b"r" + struct.pack("<I", 0xFFFFFFF0)  # room for 4,294,967,280 objects

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


def refusal(data: bytes) -> str:
    with pytest.raises(DamagedCheckpoint) as caught:
        read_contents("here", data, [])
    return str(caught.value)


@given(plain, st.integers(0, 5), st.integers(0, 60))
def test_a_number_without_measure_is_found_wherever_it_stands(
    value: Any, protocol: int, at: int
) -> None:
    data = pickle.dumps(value, protocol)
    starts = [position for _, _, position in pickletools.genops(data)]
    cut = starts[at % len(starts)]
    assert "more objects" in refusal(data[:cut] + PUT_FAR + data[cut:])


@given(plain, st.integers(0, 5))
def test_bytes_that_look_like_one_are_none(value: Any, protocol: int) -> None:
    odd = ["p4294967280\n", "r\xf0\xff\xff\x0f", value]
    assert "more objects" not in refusal(pickle.dumps(odd, protocol))
