"""Checkpoints made with malice run no code, take no memory, and end no job with a traceback."""

from __future__ import annotations

import math
import pickle
import resource
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata

from elastic_runtime import State, load
from elastic_runtime.checkpoint.format.dcp_metadata import METADATA
from elastic_runtime.checkpoint.format.manifest import FileRecord, Part
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from elastic_runtime.system.torch_formats import dcp_memory_format
from tests.hostile import (
    Trap,
    change_metadata,
    manifest_of,
    put_bytes,
    put_value,
    replace_file,
    seal,
)
from tests.ranks import run_ranks
from tests.trained import cut_off, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HUGE = 1 << 50
FEW_GIB = 4 << 30  # of address space, more than a rank of these tests needs


def saved(path: Path, **values: Any) -> Path:
    """The directory of a checkpoint of these values."""
    state = State(generators=False, **values)
    state.checkpoints(path / "runs")
    with trained(state):
        state.commit()
    return path / "runs" / "step-1.term-1"


def resume(path: Path, **values: Any) -> State:
    """A State with these values, and then with those that are saved."""
    state = State(generators=False, **values)
    state.checkpoints(path / "runs")
    with cut_off(state):
        return state


def refused(path: Path, text: str, **values: Any) -> None:
    """Loads in another process, which has little memory to spare, and expects a refusal."""
    (outcome,) = run_ranks(1, _with_little_memory, path, values)
    refusals = ("DamagedCheckpoint", "CheckpointUsageError", "CheckpointFailed")
    assert outcome.error in refusals, outcome
    assert text in outcome.text


def _with_little_memory(path: Path, values: dict[str, Any]) -> None:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + FEW_GIB, used + FEW_GIB))
    resume(path, **values)


def test_metadata_that_would_run_code(tmp_path: Path) -> None:
    path = saved(tmp_path, best=1)
    trap = tmp_path / "sprung"
    replace_file(path, METADATA, pickle.dumps(Trap(trap)))
    with pytest.raises(DamagedCheckpoint, match=r"\.metadata is refused: .*posix\.mkdir"):
        resume(tmp_path, best=0)
    assert not trap.exists()


def test_metadata_with_members_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So Python 3.11.0 to 3.11.3 pickle enumerations, and with it that of Debian 12."""
    by_name = lambda self, protocol: (getattr, (type(self), self.name))  # noqa: E731
    monkeypatch.setattr(dcp_memory_format(), "__reduce_ex__", by_name)
    path = saved(tmp_path, weight=torch.ones(3))
    assert b"getattr" in (path / METADATA).read_bytes()
    assert resume(tmp_path, weight=torch.zeros(3)).weight.tolist() == [1, 1, 1]


class Lookup:
    """Is unpickled as an attribute of a class that is no enumeration."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (torch.Size, "__init__")


def test_metadata_that_looks_up_anything_else(tmp_path: Path) -> None:
    path = saved(tmp_path, best=1)
    replace_file(path, METADATA, pickle.dumps(Lookup()))
    with pytest.raises(DamagedCheckpoint, match=r"\.metadata is refused: it asks for '__init__'"):
        resume(tmp_path, best=0)


# Each value is replaced, and threads read them: any of them may be the first.
_REFUSED = r"(best|:progress) in .*rank-0\.distcp is refused"


def test_a_value_that_would_run_code(tmp_path: Path) -> None:
    path = saved(tmp_path, best=1)
    trap = tmp_path / "sprung"
    put_value(path, Trap(trap))
    state = State(generators=False, best=0)
    with pytest.raises(DamagedCheckpoint, match=_REFUSED):
        load(path.parent, state)
    assert not trap.exists()
    assert state.best == 0


def test_the_traps_of_these_tests_would_spring(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


def test_a_value_that_is_no_tensor_nor_anything_else(tmp_path: Path) -> None:
    path = saved(tmp_path, best=1)
    put_bytes(path, bytes(1000))
    with pytest.raises(DamagedCheckpoint, match=_REFUSED):
        resume(tmp_path, best=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps([1]),
        pickle.dumps(3)[:-1],
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",  # a frame of 2^63 bytes
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fN.",  # a string of 2^63 bytes
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",  # lists in lists in lists
    ],
)
def test_what_is_no_metadata(tmp_path: Path, data: bytes) -> None:
    path = saved(tmp_path, best=1)
    replace_file(path, METADATA, data)
    refused(tmp_path, ".metadata is refused", best=0)


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"p2147483647\n"])
def test_metadata_with_an_object_of_an_absurd_number(tmp_path: Path, put: bytes) -> None:
    """The unpickler makes room for as many objects as the number says: 34 GB here."""
    path = saved(tmp_path, best=1)
    replace_file(path, METADATA, b"\x80\x04N" + put + b".")
    refused(tmp_path, "it speaks of more objects than it can have", best=0)


def _all(things: Callable[[Any], Any], **fields: Any) -> Callable[[Any], None]:
    """A change of the metadata: these fields of all things of a kind."""

    def change(metadata: Any) -> None:
        for thing in things(metadata):
            for name, value in fields.items():
                setattr(thing, name, value)

    return change


def _items(metadata: Any) -> Any:
    return metadata.storage_data.values()


def _tensors(metadata: Any) -> Any:
    told = metadata.state_dict_metadata.values()
    return [one for one in told if isinstance(one, TensorStorageMetadata)]


def _properties(metadata: Any) -> Any:
    return [tensor.properties for tensor in _tensors(metadata)]


_EMPTY = torch.Size([0])
_LARGE = torch.Size([HUGE])
_LARGER = _all(_tensors, size=_LARGE, chunks=[ChunkStorageMetadata(_EMPTY, _LARGE)])


@pytest.mark.parametrize(
    "change",
    [
        _all(_items, relative_path="../../secret"),
        _all(_items, offset=HUGE),
        _all(_items, offset=-1),
        _all(_items, length=HUGE),
        _LARGER,
        _all(_tensors, size=_LARGE),  # without content
        _all(_properties, dtype=torch.complex128),
        _all(_tensors, size=torch.Size([1, 1000])),
        _all(_tensors, size="large"),
        _all(lambda metadata: [metadata], storage_data=None),
        _all(lambda metadata: [metadata], storage_data={}),
    ],
)
def test_metadata_that_does_not_describe_the_files(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    # A plain tensor takes its size from the checkpoint: nothing of the program limits it.
    path = saved(tmp_path, noise=torch.ones(1000))
    change_metadata(path, change)
    refused(tmp_path, ".metadata is refused", noise=torch.ones(1000))


def test_a_manifest_that_speaks_of_more_than_there_is(tmp_path: Path) -> None:
    path = saved(tmp_path, noise=torch.ones(1000))

    change_metadata(path, _LARGER)
    change_metadata(path, _all(_items, length=8 * HUGE))
    part = Part(0, 8 * HUGE, 0, 0)
    seal(path, FileRecord("rank-0.distcp", 8 * HUGE, 0, (part,)))
    refused(tmp_path, f"bytes instead of {8 * HUGE}", noise=torch.ones(1000))


@pytest.mark.parametrize("field", ["step", "term", "world", "saved_at", "entries", "files"])
def test_a_manifest_with_absurd_fields(tmp_path: Path, field: str) -> None:
    path = saved(tmp_path, best=1)
    manifest = manifest_of(path)
    absurd: dict[str, Any] = {
        "entries": (math.inf,),
        "files": (FileRecord("../../secret", 1, 1),),
        "saved_at": math.inf,
    }
    changed = replace(manifest, **{field: absurd.get(field, -HUGE)})
    (path / "MANIFEST.json").write_bytes(changed.encode())
    try:
        resume(tmp_path, best=0)
    except CheckpointError as error:
        assert "MANIFEST.json" in str(error)
