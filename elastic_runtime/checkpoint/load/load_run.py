"""One load: all ranks read one checkpoint, and give it to the State only if all of it is intact.

They do it in steps and agree after each: no rank restores a part before all ranks have verified
everything that they read.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import crc32c
import torch

from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.manifest import OUTLINE
from elastic_runtime.checkpoint.format.metadata_reader import read_contents
from elastic_runtime.checkpoint.format.outline_file import Outlined
from elastic_runtime.checkpoint.format.part_columns import read_outline, read_parts
from elastic_runtime.checkpoint.format.stored_items import (
    Contents,
    Known,
    Stored,
    StoredTensor,
    StoredValue,
)
from elastic_runtime.checkpoint.format.tensor_memory import local_chunk, without_collection
from elastic_runtime.checkpoint.load import part_reader
from elastic_runtime.checkpoint.load.part_reader import Fetch, TensorTarget
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
from elastic_runtime.errors import (
    CheckpointError,
    CheckpointFailed,
    CheckpointUsageError,
    DamagedCheckpoint,
    UnknownFormat,
)
from elastic_runtime.parts.tensor_memory import local_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
    from elastic_runtime.checkpoint.storage.storage_contract import Source
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.parts.per_rank import RankPosition
    from elastic_runtime.parts.saved_parts import SavedParts, Wanted
    from elastic_runtime.worker.peers import Peers


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load has come to.

    Attributes:
        missing: keys of the program that the checkpoint lacks; they were left as they are.
        surplus: keys of the checkpoint that the program has no use for.
        reset: parts of each rank that start from the beginning: the world has another size.
    """

    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()


def contents_of(source: Source, manifest: Manifest) -> Contents:
    """The content of a checkpoint: from its outline, or from ``.metadata`` if it has none.

    Args:
        source: where it is.
        manifest: its own.

    Raises:
        DamagedCheckpoint: the description is not what was written.
    """
    files = {file.name: file for file in manifest.files}
    if outline := files.get(OUTLINE):
        [data] = read_outline(source, manifest, outline.parts[:1])
        place = source.place(manifest.id, OUTLINE)
        return Outlined(place, data, manifest, lambda names: read_parts(source, manifest, names))
    place = source.place(manifest.id, METADATA)
    if METADATA not in files:
        raise DamagedCheckpoint(f"{place} is missing in the manifest")
    data = source.read_bytes(manifest.id, METADATA)
    if crc32c.crc32c(data) != files[METADATA].crc32c:
        raise DamagedCheckpoint(f"{place} is damaged: its checksum does not match")
    return Known(read_contents(place, data, manifest.files))


class LoadRun:
    """A load of one checkpoint into the parts of a State."""

    def __init__(
        self,
        storage: Source,
        which: CheckpointId,
        parts: SavedParts,
        place: RankPosition,
        *,
        strict: bool = True,
        careful: bool = False,
        note: Callable[[NotedEvent], None] | None = None,
    ) -> None:
        """Remembers what to load into which parts.

        Args:
            storage, which: the checkpoint.
            parts: whose content is replaced.
            place: which rank this is.
            strict: whether checkpoint and program must have the same keys.
            careful: verify everything before anything is overwritten, as the ranks can still use
                the state that they have.
            note: takes the events of this rank; None: there are none.
        """
        self._storage = storage
        self._which = which
        self._where = storage.place(which)
        self._parts = parts
        self._place = place
        self._strict = strict
        self._careful = careful
        self._note = note
        self._stored: Mapping[str, Stored] = {}
        self._wanted: Wanted | None = None
        self._names: list[str] = []  # of all keys, if some have no use here

    def run(self, peers: Peers, overwriting: Callable[[], None] = lambda: None) -> Loaded:
        """Loads on all ranks, or on none.

        Args:
            peers: all ranks, which do the same.
            overwriting: called before the first tensor is touched.

        Raises:
            DamagedCheckpoint: some rank has found that something is not what was written. The
                tensors of the parts have any content now; other values are as they were.
            CheckpointError: it is whole, but of another program.
        """
        unused = peers.on_each(self.prepare)
        if all(unused):
            self._share_surplus(peers.on_each(self._surplus_mask))
        else:  # some rank has a use for all of them
            self._wanted = replace(self._prepared, surplus=())
        if self._careful or not self._strict:
            peers.on_each(self.verify)
        overwriting()
        peers.on_each(self.read)
        return self._restored(peers)

    def prepare(self) -> int:
        """Reads what the checkpoint contains, and finds where it is to go.

        Returns:
            How many keys this rank has no use for; another one may, such as a stage of a pipeline.

        Raises:
            DamagedCheckpoint: the description of the checkpoint is not what was written.
            CheckpointError: it does not fit the parts.
        """
        with self._explained(), without_collection():
            manifest = self._manifest()
            self._check_sizes(manifest)
            contents = contents_of(self._storage, manifest)
            self._wanted = self._parts.wanted(self._where, contents.stored, self._place)
            chunks = {
                key: local_chunk(target) if isinstance(target, torch.Tensor) else None
                for key, target in self._wanted.targets.items()
            }
            self._stored = contents.find(chunks)
            self._names = sorted(contents.stored) if self._wanted.surplus else []
        if self._strict and self._wanted.missing:
            self._wanted.require_all(self._where)
        elif self._wanted.missing and self._wanted.is_foreign:
            raise CheckpointUsageError(
                f"{self._where} has none of the keys of this program: it belongs to another one; "
                "use another directory"
            )
        return len(self._wanted.surplus)

    def _surplus_mask(self) -> str:
        """Which of all keys, in order, this rank has no use for, as bits."""
        surplus = set(self._prepared.surplus)
        bits = "".join("1" if name in surplus else "0" for name in self._names)
        return f"{int(bits, 2):x}"

    def _share_surplus(self, masks: list[str]) -> None:
        """Keeps as surplus what no rank has a use for.

        Raises:
            CheckpointUsageError: there is such a key, and the keys must be the same.
        """
        common = reduce(and_, (int(mask, 16) for mask in masks))
        bits = f"{common:0{len(self._names)}b}"
        surplus = (name for name, bit in zip(self._names, bits, strict=True) if bit == "1")
        self._wanted = replace(self._prepared, surplus=tuple(surplus))
        if self._strict:
            self._wanted.require_all(self._where)

    def verify(self) -> None:
        """Reads what this rank wants, and keeps nothing of it.

        For a load that may leave tensors as they are: what this checkpoint has and an older one
        lacks must not be touched before all is known to be good.

        Raises:
            DamagedCheckpoint: a file is not what was written.
        """
        with self._explained():
            values, tensors = self._fetches()
            fetches = [Fetch(each.file, each.part, lambda: None) for each in (*values, *tensors)]
            total = sum(fetch.part.length for fetch in fetches)
            with ProgressDisplay(
                f"verifying step {self._which.step}", total, self._note
            ) as progress:
                part_reader.read(self._storage, self._which, fetches, progress.advance)

    def read(self) -> None:
        """Reads what this rank wants, tensors to their places.

        Raises:
            DamagedCheckpoint: a file is not what was written, or a value asks to run code.
        """
        with self._explained():
            values, tensors = self._fetches()
            total = sum(fetch.part.length for fetch in (*values, *tensors))
            doing = f"loading step {self._which.step}"
            with ProgressDisplay(doing, total, self._note) as progress:
                # No tensor is touched before all values are known to be good.
                for fetches in (values, tensors):
                    part_reader.read(self._storage, self._which, fetches, progress.advance)

    def restore(self) -> list[str]:
        """Hands everything to its owner.

        Returns:
            The parts that start from the beginning.

        Raises:
            CheckpointError: an owner refuses it.
        """
        return self._parts.restore(self._prepared.targets, self._place)

    # The description

    def _manifest(self) -> Manifest:
        try:
            manifest = self._storage.read_manifest(self._which)
        except UnknownFormat as error:
            raise CheckpointUsageError(
                str(error)
            ) from None  # an older one would lose what it holds
        if manifest is None:
            raise DamagedCheckpoint(
                f"rank {self._place.rank} does not see {self._where}: it was deleted meanwhile, "
                "or it is not on storage that all nodes share"
            )
        return manifest

    def _check_sizes(self, manifest: Manifest) -> None:
        """Before anything is believed that follows from the size of a file."""
        present = self._storage.sizes(self._which)
        for file in manifest.files:
            place = self._storage.place(self._which, file.name)
            if file.name not in present:
                raise DamagedCheckpoint(f"{place} is missing")
            if present[file.name] != file.bytes:
                raise DamagedCheckpoint(
                    f"{place} is damaged: {present[file.name]} bytes instead of {file.bytes}"
                )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Makes whatever goes wrong an error for all ranks: the others wait for what comes of it.

        If the checkpoint was deleted, it says so, instead of what went wrong because of that.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, CheckpointError) and self._storage.has_manifest(self._which):
                raise
            if not self._storage.has_manifest(self._which):
                gone = f"{self._where} was deleted while it was being read"
                raise DamagedCheckpoint(gone) from error
            raise CheckpointFailed(
                f"rank {self._place.rank} cannot load {self._where}: {error!r}"
            ) from error

    # The content

    @property
    def _prepared(self) -> Wanted:
        if self._wanted is None:
            raise RuntimeError("prepare() comes first")
        return self._wanted

    def _fetches(self) -> tuple[list[Fetch], list[Fetch]]:
        """What is to be read, of values and of tensors."""
        values, tensors = [], []
        for key, target in self._prepared.targets.items():
            if isinstance(target, torch.Tensor):
                tensors += self._tensor(key)
            else:
                values.append(self._value(key))
        return values, tensors

    def _value(self, key: str) -> Fetch:
        stored = self._stored[key]
        assert isinstance(stored, StoredValue)  # the parts have compared it

        def take(data: memoryview) -> None:
            place = self._storage.place(self._which, stored.file)
            self._prepared.targets[key] = _decoded(place, key, data)

        return part_reader.fetch_value(stored, take)

    def _tensor(self, key: str) -> list[Fetch]:
        stored, tensor = self._stored[key], self._prepared.targets[key]
        assert isinstance(stored, StoredTensor)  # the parts have compared it
        target = TensorTarget(local_chunk(tensor), local_tensor(tensor).detach())
        found = (part_reader.fetch_tensor(piece, stored.dtype, [target]) for piece in stored.pieces)
        return [fetch for fetch in found if fetch is not None]

    def _restored(self, peers: Peers) -> Loaded:
        found = peers.on_each(self.restore)
        wanted = self._prepared
        reset = sorted({name for names in found for name in names})
        return Loaded(wanted.missing, wanted.surplus, tuple(reset))


def _decoded(place: str, key: str, data: memoryview) -> Any:
    """A value, made of its bytes without running any code that they bring along."""
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # what was tampered with can raise anything
        first = str(error).strip().partition("\n")[0]
        raise DamagedCheckpoint(f"{key} in {place} is refused: {first}") from None
