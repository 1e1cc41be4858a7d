"""What is stored is plain DCP; what is loaded runs no code."""

from __future__ import annotations

import io
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from elastic_runtime.checkpoint import dcp
from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from elastic_runtime.checkpoint.storage import ChecksumWriter
from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.torch_private import dcp_stored_item

if TYPE_CHECKING:
    from pathlib import Path


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def saved(tmp_path: Path, entries: dict[str, Any]) -> Path:
    ckpt = Checkpointer(tmp_path / "runs", entries)
    ckpt.save(sync=True)
    return tmp_path / "runs" / "step-0.term-1"


def replaced(checkpoint: Path, name: str, data: bytes) -> None:
    """Replaces a file and seals the manifest again, as somebody with malice could."""
    (checkpoint / name).unlink()
    with ChecksumWriter(checkpoint / name) as out:
        out.write(data)
    manifest = Manifest.decode("", (checkpoint / MANIFEST).read_bytes())
    files = tuple(out.record() if file.name == name else file for file in manifest.files)
    sealed = Manifest(step=manifest.step, term=manifest.term, world=1, files=files)
    (checkpoint / MANIFEST).write_bytes(sealed.encode())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_dcp_reads_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 4)
    path = saved(tmp_path, {"model": model, "best": 5})
    state = {"model.weight": torch.zeros(4, 3), "model.bias": torch.zeros(4)}
    torch_dcp.load(
        state,
        storage_reader=torch_dcp.FileSystemReader(path),
        planner=torch_dcp.DefaultLoadPlanner(flatten_state_dict=False),
    )
    assert torch.equal(state["model.weight"], model.weight)
    assert torch.equal(state["model.bias"], model.bias)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.full((4,), 0.5, dtype=torch.bfloat16),
        torch.full((4,), 2.0, dtype=torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(3, 4).t(),
    ],
)
def test_tensors_of_every_kind_come_back(tmp_path: Path, tensor: torch.Tensor) -> None:
    saved(tmp_path, {"model": _Buffers(tensor)})
    loaded = _Buffers(torch.zeros_like(tensor))
    Checkpointer(tmp_path / "runs", {"model": loaded}).resume()
    assert torch.equal(loaded.tensor.double(), tensor.double())


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    path = saved(tmp_path, {"best": 1, "model": _Buffers(torch.zeros(1_000_000)[:10])})
    assert (path / "rank-0.distcp").stat().st_size < 10_000


class _Buffers(torch.nn.Module):
    tensor: torch.Tensor

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("tensor", tensor)


def test_hostile_metadata_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"best": 1})
    trap = tmp_path / "sprung"
    replaced(path, dcp.METADATA, pickle.dumps(Trap(trap)))
    with pytest.raises(DamagedCheckpoint, match=r"\.metadata is refused: .*posix\.mkdir"):
        Checkpointer(tmp_path / "runs", {"best": 0}).resume()
    assert not trap.exists()


def test_a_hostile_entry_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"best": 1})
    trap = tmp_path / "sprung"
    metadata = dcp.read_metadata(path, [FileRecord("rank-0.distcp", 0, 0)])
    buffer = io.BytesIO()
    torch.save(Trap(trap), buffer)
    metadata.storage_data = {
        index: dcp_stored_item()("rank-0.distcp", 0, buffer.tell())
        for index in metadata.storage_data
    }
    replaced(path, dcp.METADATA, pickle.dumps(metadata))
    replaced(path, "rank-0.distcp", buffer.getvalue())
    entries = {"best": 0}
    with pytest.raises(DamagedCheckpoint, match=r"step-0\.term-1 is refused"):
        Checkpointer(tmp_path / "runs", entries).resume()
    assert not trap.exists()
    assert entries == {"best": 0}


def test_metadata_cannot_point_elsewhere(tmp_path: Path) -> None:
    path = saved(tmp_path, {"best": 1})
    metadata = dcp.read_metadata(path, [FileRecord("rank-0.distcp", 0, 0)])
    for item in metadata.storage_data.values():
        item.relative_path = "../../secret"
    replaced(path, dcp.METADATA, pickle.dumps(metadata))
    with pytest.raises(DamagedCheckpoint, match=r"points to '\.\./\.\./secret'"):
        Checkpointer(tmp_path / "runs", {"best": 0}).resume()


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps([1]), pickle.dumps(3)[:-1]])
def test_what_is_no_metadata_is_refused(tmp_path: Path, data: bytes) -> None:
    path = saved(tmp_path, {"best": 1})
    replaced(path, dcp.METADATA, data)
    with pytest.raises(DamagedCheckpoint, match=r"\.metadata is refused"):
        Checkpointer(tmp_path / "runs", {"best": 0}).resume()
