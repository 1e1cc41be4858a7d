#!/usr/bin/env python3
"""What it costs that thousands of ranks agree who writes what of a checkpoint, and load it.

All ranks are played in one process, one after the other, with the code that a job runs; only the
wire is replaced, by one that counts bytes. Times are of the processor. Each world is planned three
times: for the first time, after a change to another one, and after the change back.

    scripts/bench/plan.py --worlds 256,1024,2048 --items 900
    scripts/bench/plan.py --worlds 256 --content    # also what a commit writes, and a load reads
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.distributed.checkpoint import metadata as dcp

from elastic_runtime.checkpoint.format import dcp_metadata, metadata_reader, outline_file
from elastic_runtime.checkpoint.format.chunks import Chunk
from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import OUTLINE, FileRecord, Manifest, Part
from elastic_runtime.checkpoint.format.part_columns import PartColumns
from elastic_runtime.checkpoint.format.rank_outline import EvenCut, Item, chunk_of, say, text_digest
from elastic_runtime.checkpoint.format.stored_items import StoredTensor
from elastic_runtime.checkpoint.format.tensor_memory import without_collection
from elastic_runtime.checkpoint.save import file_writer
from elastic_runtime.checkpoint.save.rank_share import WritePlans, agree
from elastic_runtime.system.torch_formats import dcp_stored_item
from elastic_runtime.worker.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_runtime.checkpoint.format.rank_outline import OutlineParts
    from elastic_runtime.checkpoint.format.write_plan import WritePlan

_MODES = ("replicated", "sharded", "mixed")
_HEAD = 1024  # bytes of each rank in an exchange of all: see ``Peers``
_AROUND = 600  # bytes of a file around those of a tensor, about


def held(rank: int, world: int, count: int, mode: str) -> list[Item]:
    """What a rank of a job holds: DDP's, FSDP2's, or every third tensor whole and generators."""
    found = []
    for number in range(count):
        shape = (4096 + number % 7, 1024) if number % 3 else (4096,)
        whole = mode == "replicated" or (mode == "mixed" and number % 3 == 0)
        offsets, sizes = chunk_of(() if whole else (EvenCut(0, world, rank),), shape)
        key = f"model.layers.{number // 9}.block.attention.w{number % 9}.weight"
        found.append(Item(key, "float32", shape, offsets, sizes, 4 * prod(sizes)))
    if mode == "mixed":
        found += [Item(f"rng.rank-{rank}"), Item(f"sampler.rank-{rank}")]
    return found if rank else [*found, Item("optimizer.param_groups"), Item("step")]


@dataclass
class Cost:
    """What one agreement has cost: bytes by rank, seconds of rank 0, and of each other one."""

    sent: list[int]
    received: list[int]
    first: float = 0.0
    others: list[float] = field(default_factory=list)


@dataclass
class World:
    """All ranks, and what is on the wire between them."""

    said: Sequence[OutlineParts]
    digests: list[list[str]] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    known: bool = True
    shares: list[Any] = field(default_factory=list)


class Wire(Peers):
    """One rank of a world, without a network."""

    def __init__(self, rank: int, world: World, cost: Cost) -> None:
        self.rank, self.world, self.group = rank, len(world.said), None
        self._all, self._cost = world, cost

    def _exchange_of_all(self) -> None:
        self._cost.sent[self.rank] += _HEAD * (self.world - 1)  # in a ring
        self._cost.received[self.rank] += _HEAD * (self.world - 1)

    def gather(self, value: Any) -> list[Any]:
        self._exchange_of_all()
        return self._all.digests

    def on_first(self, action: Callable[[], Any]) -> Any:
        self._exchange_of_all()
        if self.rank == 0:
            self._all.known = action()
        return self._all.known

    def to_first(self, value: Any) -> list[Any] | None:
        self._exchange_of_all()
        size = len(json.dumps(value)) if value is not None and self.rank else 0
        self._cost.sent[self.rank] += size
        self._cost.received[0] += size
        return self._all.given if self.rank == 0 else None

    def share_out(self, action: Callable[[], Sequence[Any]]) -> Any:
        self._exchange_of_all()
        if self.rank == 0:
            self._all.shares = list(action())
        size = max(len(json.dumps(share)) for share in self._all.shares[:2])
        if self.rank:
            self._cost.sent[0] += size
            self._cost.received[self.rank] += size
        return self._all.shares[self.rank]


def agreement(plans: WritePlans, said: Sequence[OutlineParts]) -> tuple[WritePlan, Cost]:
    """Has all ranks agree."""
    world = World(said, [[text_digest(part) for part in one.parts] for one in said])
    named = {
        d: p
        for one, ds in zip(said, world.digests, strict=True)
        for p, d in zip(one.parts, ds, strict=True)
    }
    world.given = [list(named.values())]
    cost = Cost([0] * len(said), [0] * len(said))
    plan: WritePlan | None = None
    for rank, one in enumerate(said):
        began = time.process_time()
        made, _ = agree(plans, Wire(rank, world, cost), one)
        seconds = time.process_time() - began
        if rank == 0:
            plan, cost.first = made, seconds
        else:
            cost.others.append(seconds)
    assert plan is not None
    return plan, cost


def _planning(world: int, items: int, mode: str) -> tuple[WritePlan, list[dict[str, Any]]]:
    plans, rows = WritePlans(), []
    began = time.process_time()
    said = [say(held(rank, world, items, mode), rank, world) for rank in range(world)]
    describe = (time.process_time() - began) / world
    less = [say(held(rank, world - 1, items, mode), rank, world - 1) for rank in range(world - 1)]
    plan: WritePlan | None = None
    for when, each in (("first", said), ("another", less), ("back", said)):
        gc.collect()
        plan, cost = agreement(plans, each)
        rows.append(
            {
                "world": world,
                "mode": mode,
                "when": when,
                "sent": max(cost.sent[1:]),
                "received": max(cost.received[1:]),
                "sent_0": cost.sent[0],
                "received_0": cost.received[0],
                "describe": describe,
                "seconds_0": cost.first,
                "seconds": statistics.median(cost.others),
            }
        )
    assert plan is not None
    return plan, rows


def _content(world: int, mode: str, plan: WritePlan) -> Iterator[dict[str, Any]]:
    """What a commit writes, and what a rank that loads reads of it: before and after."""
    files = [_record(rank, sizes) for rank, sizes in enumerate(plan.sizes)]
    wanted = {
        item.key: Chunk(item.offsets, item.sizes) if item.dtype else None
        for item in plan.outlines[world // 2].items(
            world // 2, range(len(plan.outlines[world // 2].schema))
        )
    }
    for when, measure in (("before", _listed), ("after", _outlined)):
        for what, seconds, size in measure(world, plan, files, wanted):
            row = {"world": world, "mode": mode, "when": when, "what": what}
            yield {**row, "s": seconds, "b": size}


# What was done, seconds, bytes.
_Figure = tuple[str, float, int]
_Wanted = dict[str, Chunk | None]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    with without_collection():  # as a load does
        began = time.process_time()
        made = work()
        return made, time.process_time() - began


def _listed(
    world: int, plan: WritePlan, files: Sequence[FileRecord | None], wanted: _Wanted
) -> Iterator[_Figure]:
    """As it is with few parts, where there were many before: all parts in the manifest."""
    sent = [json.dumps(file.encode()) for file in files if file]
    _, seconds = _timed(lambda: [FileRecord.decode(json.loads(each)) for each in sent])
    yield "rank 0 gets records", seconds, sum(map(len, sent))
    metadata, seconds = _timed(lambda: _by_objects(plan, files))
    yield ".metadata", seconds, len(metadata)
    manifest = Manifest(1, 1, world, files=tuple(file for file in files if file))
    written, seconds = _timed(manifest.encode)
    yield "manifest", seconds, len(written)

    def load() -> None:
        read = Manifest.decode("it", written)
        stored = metadata_reader.read_contents("it", metadata, read.files)
        for key, chunk in wanted.items():
            found = stored[key]
            if chunk is not None and isinstance(found, StoredTensor):
                assert [piece for piece in found.pieces if piece.chunk.overlap(chunk)]

    _, seconds = _timed(load)
    yield "a rank loads", seconds, len(written) + len(metadata)


def _outlined(
    world: int, plan: WritePlan, files: Sequence[FileRecord | None], wanted: _Wanted
) -> Iterator[_Figure]:
    """As it is with more than ``limits.MAX_LISTED_PARTS`` parts."""
    sent = [json.dumps(file_writer.section(file)) for file in files if file]
    _, seconds = _timed(lambda: [file_writer.with_parts(json.loads(each)) for each in sent])
    yield "rank 0 gets records", seconds, sum(map(len, sent))
    metadata, seconds = _timed(lambda: dcp_metadata.encode(plan, files))
    yield ".metadata", seconds, len(metadata)
    described, seconds = _timed(lambda: Description(0).describe(plan, files, for_dcp=False))
    beside = {file.name: file for file in described.beside}
    yield ".outline", seconds, sum(map(len, beside[OUTLINE].pieces))
    records = (*described.files, *(file.record() for file in described.beside))
    manifest = Manifest(1, 1, world, files=records)
    written, seconds = _timed(manifest.encode)
    yield "manifest", seconds, len(written)
    first, *sections = beside[OUTLINE].pieces
    size = len(written) + len(first)

    def load() -> None:
        read = Manifest.decode("it", written)
        by_name = dict(zip(read.sections(), sections, strict=True))
        listed = {file.name: file for file in read.files}

        def parts(names: Iterable[str]) -> dict[str, PartColumns]:
            nonlocal size
            size += sum(len(by_name[name]) for name in names)
            return {name: PartColumns.unpack("it", by_name[name], listed[name]) for name in names}

        found = outline_file.Outlined("it", first, read, parts).find(wanted)
        assert all(one.pieces for one in found.values() if isinstance(one, StoredTensor))

    _, seconds = _timed(load)
    yield "a rank loads", seconds, size


def _by_objects(plan: WritePlan, files: Sequence[FileRecord | None]) -> bytes:
    """``.metadata`` as it is made of DCP's own objects: what ``index`` spares."""
    described: dict[str, Any] = {}
    places: dict[dcp.MetadataIndex, Any] = {}
    one_size = cache(torch.Size)
    for rank, file in enumerate(files):
        for item, part in zip(plan.file(rank), file.parts if file else (), strict=True):
            place = dcp_stored_item()(file and file.name, part.offset, part.length)
            if not item.dtype:
                described[item.key] = dcp.BytesStorageMetadata()
                places[dcp.MetadataIndex(item.key)] = place
                continue
            if item.key not in described:
                properties = dcp.TensorProperties(dtype=getattr(torch, item.dtype))
                size = one_size(item.shape)
                described[item.key] = dcp.TensorStorageMetadata(properties, size, [])
            chunks, offsets = described[item.key].chunks, one_size(item.offsets)
            places[dcp.MetadataIndex(item.key, offsets, len(chunks))] = place
            chunks.append(dcp.ChunkStorageMetadata(offsets, one_size(item.sizes)))
    return pickle.dumps(dcp.Metadata(described, storage_data=places))


def _record(rank: int, sizes: Sequence[int]) -> FileRecord | None:
    parts, end = [], 0
    for size in sizes:
        length = max(0, size) + _AROUND
        parts.append(Part(end, length, random.getrandbits(32), 512 if size >= 0 else -1))
        end += length
    return FileRecord(f"rank-{rank}.distcp", end, rank, tuple(parts)) if parts else None


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worlds", default="256,1024,2048", help="numbers of ranks")
    parser.add_argument("--items", type=int, default=900, help="tensors of the state")
    parser.add_argument("--modes", default=",".join(_MODES))
    parser.add_argument("--content", action="store_true", help="also what a commit writes")
    parser.add_argument("--json", help="write all figures there")
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    print("            a rank: sends, gets, says in, agrees in | rank 0: sends, gets, agrees in")
    for world in map(int, args.worlds.split(",")):
        for mode in args.modes.split(","):
            plan, rows = _planning(world, args.items, mode)
            for row in rows:
                print(
                    f"{world:5} {mode:10} {row['when']:8}"
                    f"{row['sent'] / 1e6:6.2f} MB {row['received'] / 1e6:6.2f} MB "
                    f"{row['describe'] * 1e3:6.1f} ms {row['seconds'] * 1e3:6.1f} ms |"
                    f"{row['sent_0'] / 1e6:6.2f} MB {row['received_0'] / 1e6:6.2f} MB "
                    f"{row['seconds_0']:6.2f} s",
                    flush=True,
                )
            found += rows
            for row in _content(world, mode, plan) if args.content else ():
                size = f"{row['b'] / 1e6:8.2f} MB"
                what = f"{row['when']:7} {row['what']:20}"
                print(f"{world:5} {mode:10} {what} {size} {row['s']:6.2f} s", flush=True)
                found.append(row)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
