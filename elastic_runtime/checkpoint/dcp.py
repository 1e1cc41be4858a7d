"""Reading and writing shards in the format of ``torch.distributed.checkpoint`` (DCP).

DCP decides which rank writes what, and reshards on load; what is stored can be read by plain DCP
as well. Its own file system classes are not used for writing, because they neither checksum nor
fence, and its loading is narrowed, because it would run code that a checkpoint brings along.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from elastic_runtime.checkpoint.storage import ChecksumWriter, explained
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from elastic_runtime.torch_private import dcp_memory_format, dcp_stored_item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner

    from elastic_runtime.checkpoint.manifest import FileRecord

METADATA = ".metadata"

_StoredItem: Any = dcp_stored_item()


# Saving


@dataclass(frozen=True)
class _Place:
    """Where one rank writes; rank 0 tells it along with the plan."""

    directory: str
    file: str


@dataclass(frozen=True)
class _Written:
    """What rank 0 hears about one item: where it is, and the file that it is in."""

    item: Any
    file: FileRecord


class ShardWriter(StorageWriter):  # type: ignore[misc]
    """Writes one file per rank, and hands over to a commit on rank 0."""

    def __init__(
        self, begin: Callable[[], Path], commit: Callable[[Sequence[FileRecord]], None]
    ) -> None:
        """Takes what rank 0 does before and after.

        Args:
            begin: makes the directory and returns it.
            commit: gets all files, ``.metadata`` included, once all of them are durable.
        """
        super().__init__()
        self._begin = begin
        self._commit = commit
        self._directory = Path()
        self._planned: set[MetadataIndex] = set()

    def reset(self, checkpoint_id: object = None) -> None:
        """Part of DCP's protocol; a writer serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Part of DCP's protocol; the plan says all that is needed."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leaves each rank's plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On rank 0: makes the directory and tells each rank its file."""
        self._directory = self._begin()
        self._planned = {item.index for plan in plans for item in plan.items}
        return [
            replace(plan, storage_data=_Place(str(self._directory), f"rank-{rank}.distcp"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's items into its file."""
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan, planner) if plan.items else [])
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        place: _Place = plan.storage_data
        path = Path(place.directory, place.file)
        ends = []
        with explained(f"save to {path}"), ChecksumWriter(path) as out:
            for item in plan.items:
                _write_item(out, planner.resolve_data(item))
                ends.append(out.tell())
        file = out.record()
        return [
            WriteResult(item.index, end - start, _Written(_stored(path, start, end), file))
            for item, start, end in zip(plan.items, [0, *ends], ends, strict=False)
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0: compares what was written with what was planned, and commits."""
        written = {result.index: result.storage_data for part in results for result in part}
        if written.keys() != self._planned:
            lost = sorted({index.fqn for index in self._planned ^ written.keys()})
            raise CheckpointError(
                f"cannot save to {self._directory}: what was written is not what was planned "
                f"({', '.join(lost[:3])})"
            )
        metadata.storage_data = {index: one.item for index, one in written.items()}
        path = self._directory / METADATA
        with explained(f"save to {path}"), ChecksumWriter(path) as out:
            out.write(pickle.dumps(metadata))
        files = {one.file.name: one.file for one in written.values()}
        self._commit([*(files[name] for name in sorted(files)), out.record()])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Part of DCP's protocol; directories are given to the constructor."""
        return True


def _stored(path: Path, start: int, end: int) -> Any:
    return _StoredItem(relative_path=path.name, offset=start, length=end - start)


def _write_item(out: ChecksumWriter, data: torch.Tensor | io.BytesIO) -> None:
    if isinstance(data, io.BytesIO):
        out.write(data.getbuffer())
        return
    tensor = data.detach().cpu()
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()  # a view would be saved with all of its storage
    torch.save(tensor, out)


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """Collects the state itself, so that a failure to do so on one rank reaches all of them."""

    def __init__(self, collect: Callable[[], dict[str, Any]]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._collect = collect

    def set_up_planner(
        self, state_dict: object, storage_meta: object = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(self._collect(), storage_meta, is_coordinator)


def save(
    collect: Callable[[], dict[str, Any]], writer: ShardWriter, group: dist.ProcessGroup | None
) -> None:
    """Saves the state of all ranks.

    Args:
        collect: returns this rank's part, flat, by key.
        writer: where to.
        group: all ranks; None if there is only this one.

    Raises:
        CheckpointError: a rank could not write; the same on every rank.
    """
    planner = _SavePlanner(collect)
    if group is None:
        planner.set_up_planner({}, is_coordinator=True)
        plans, metadata = planner.create_global_plan([planner.create_local_plan()])
        (plan,) = writer.prepare_global_plan(plans)
        writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])
        return
    try:
        torch_dcp.save({}, storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        _raise_cause(error)


def _raise_cause(error: CheckpointException) -> NoReturn:
    """Raises the first failure instead of DCP's collection with all tracebacks."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    if isinstance(cause, CheckpointError):
        raise CheckpointError(str(cause)) from None
    if not isinstance(cause, Exception):  # an interrupt or an exit, at some rank
        raise cause
    raise RuntimeError(f"rank {rank} failed while saving: {cause!r}") from cause


# Loading

_CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (
        torch.Size,
        dcp_metadata.Metadata,
        dcp_metadata.MetadataIndex,
        dcp_metadata.TensorStorageMetadata,
        dcp_metadata.BytesStorageMetadata,
        dcp_metadata.ChunkStorageMetadata,
        dcp_metadata.TensorProperties,
        dcp_metadata.StorageMeta,
        dcp_memory_format(),
        _StoredItem,
    )
}


class _MetadataUnpickler(pickle.Unpickler):
    """Builds nothing but the few classes that metadata consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if found := _CLASSES.get((module, name)):
            return found
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _layout
        raise DamagedCheckpoint(f"it asks for {module}.{name}, which no checkpoint of ours needs")


def _layout(name: str) -> torch.layout:
    layout = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(layout, torch.layout):
        raise DamagedCheckpoint(f"it asks for the layout {name!r}")
    return layout


def read_metadata(directory: Path, files: Sequence[FileRecord]) -> Metadata:
    """Reads what a checkpoint contains, and builds nothing else.

    Args:
        directory: of the checkpoint.
        files: the only ones that its content may be in.

    Raises:
        DamagedCheckpoint: it is not metadata, asks for anything foreign, or points elsewhere.
    """
    path = directory / METADATA
    try:
        metadata = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
        if not isinstance(metadata, Metadata):
            raise DamagedCheckpoint("it is no metadata")
        named = {item.relative_path for item in metadata.storage_data.values()}
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{path} is refused: {error}") from None
    except Exception as error:
        # A pickle that was tampered with can raise anything.
        raise DamagedCheckpoint(f"{path} is refused: {error!r}") from None
    if foreign := named - {file.name for file in files}:
        raise DamagedCheckpoint(f"{path} is refused: it points to {min(foreign)!r}")
    return metadata


class _SafeLoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """Unpickles plain values only."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def load(state: dict[str, Any], directory: Path, metadata: Metadata) -> None:
    """Loads this rank's part of a checkpoint; nothing is said to the other ranks.

    Args:
        state: tensors are filled in place, other values replaced.
        directory: of the checkpoint.
        metadata: from ``read_metadata``.

    Raises:
        DamagedCheckpoint: an entry is not what the metadata says, or asks to run code.
    """
    reader = torch_dcp.FileSystemReader(directory)
    planner = _SafeLoadPlanner()
    try:
        planner.set_up_planner(state, metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        plan = planner.create_local_plan()
        reader.read_data(planner.finish_plan(plan), planner).wait()
    except torch.OutOfMemoryError:
        raise
    except (pickle.UnpicklingError, OSError, RuntimeError, ValueError, AssertionError) as error:
        first = str(error).strip().split("\n")[0]
        raise DamagedCheckpoint(f"{directory} is refused: {first}") from error
