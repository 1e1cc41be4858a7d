"""A checkpoint of many parts is described in few bytes, of which nothing is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import (
    MANIFEST,
    OUTLINE,
    CheckpointId,
    FileRecord,
    Manifest,
    Part,
)
from elastic_runtime.checkpoint.format.part_columns import read_parts
from elastic_runtime.checkpoint.format.rank_outline import Item
from elastic_runtime.checkpoint.format.stored_items import StoredTensor, StoredValue
from elastic_runtime.checkpoint.load.load_run import contents_of
from elastic_runtime.checkpoint.storage.catalog import inspect_checkpoint, verify
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.limits import MAX_LISTED_PARTS
from tests import small_checkpoints
from tests.checkpoints import plan_of, sharded, write
from tests.hostile import manifest_of, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from elastic_runtime.checkpoint.storage.storage_contract import Storage

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


def change(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Changes what the outline says, and seals it again."""
    path = checkpoint / OUTLINE
    (record,) = (file for file in manifest_of(checkpoint).files if file.name == OUTLINE)
    old = path.read_bytes()
    pieces = [old[part.offset : part.offset + part.length] for part in record.parts]
    body = json.loads(pieces[0])
    change(body)
    put(checkpoint, [json.dumps(body).encode(), *pieces[1:]])


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
    path = checkpoint / OUTLINE
    (record,) = (file for file in manifest_of(checkpoint).files if file.name == OUTLINE)
    with path.open("r+b") as file:  # that of rank 1
        file.seek(record.parts[2].offset)
        file.write(bytes(record.parts[2].length))
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


def _rename(body: Any, old: str, new: str) -> None:
    for schema in body["schemas"]:
        for row in schema:
            row[0] = new if row[0] == old else row[0]


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
        (lambda body: _rename(body, "v", "w"), "its ranks disagree about w"),
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
    (record,) = (file for file in manifest_of(checkpoint).files if file.name == OUTLINE)
    content = (checkpoint / OUTLINE).read_bytes()
    pieces = [content[part.offset : part.offset + part.length] for part in record.parts[1:]]
    put(checkpoint, [data, *pieces])
    with pytest.raises(DamagedCheckpoint, match=r"\.outline is refused"):
        found(checkpoint, {})


def test_sections_that_are_not_those_of_the_files_are_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    (record,) = (file for file in manifest_of(checkpoint).files if file.name == OUTLINE)
    content = (checkpoint / OUTLINE).read_bytes()
    first, one, two, three = (
        content[part.offset : part.offset + part.length] for part in record.parts
    )
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


def test_many_parts_have_an_outline() -> None:
    world = 101
    tensors = [f"w{number}" for number in range(MAX_LISTED_PARTS // 100)]
    held = [
        [Item(key, "uint8", (world,), (rank,), (1,), 1) for key in tensors] for rank in range(world)
    ]
    files = []
    for rank in range(world):
        parts = tuple(Part(number * 64, 64, 1, 8) for number in range(len(tensors)))
        files.append(FileRecord(f"rank-{rank}.distcp", 64 * len(parts), 1, parts))
    described = Description().describe(plan_of(held), files)
    assert [one.name for one in described.beside] == [METADATA, OUTLINE]
    assert {(len(file.parts), file.items) for file in described.files} == {(0, len(tensors))}


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
