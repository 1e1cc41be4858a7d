"""How torch stores and loads tensors, checked against the torch that is installed."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from elastic_runtime.system import torch_formats
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from pathlib import Path


class _Rebuilding(torch.nn.Linear):
    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)


def test_a_module_that_has_a_say_in_loading_is_seen() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert torch_formats.loads_plainly(plain)
    assert not torch_formats.loads_plainly(torch.nn.Sequential(_Rebuilding(2, 2)))
    for register in ("register_load_state_dict_pre_hook", "register_load_state_dict_post_hook"):
        hooked = torch.nn.Sequential(torch.nn.Linear(2, 2))
        getattr(hooked[0], register)(lambda *_: None)
        assert not torch_formats.loads_plainly(hooked)


def sharded() -> bool:
    """Whether a module that FSDP2 has sharded is read to its place."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    assert model[0]._load_state_dict_post_hooks
    with torch.no_grad():
        for value in model.state_dict().values():
            value.to_local().fill_(7.0)
    assert model(torch.ones(1, 3)).tolist() == [[7 * 5 * 28.0 + 7] * 3]
    return torch_formats.loads_plainly(model)


def test_what_is_read_into_shards_of_fsdp_needs_no_more() -> None:
    assert values(run_ranks(1, sharded)) == [True]


def test_torch_makes_a_tensor_of_its_pickle_and_its_bytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tensor", "w") as archive:
        pickled = torch_formats.tensor_pickle(torch.bfloat16, (2, 3), 12)
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", b"\x80\x3f" * 6)
    loaded = torch.load(tmp_path / "tensor", weights_only=True)
    assert torch.equal(loaded, torch.ones(2, 3, dtype=torch.bfloat16))


def where_a_shard_is() -> Any:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return torch_formats.dtensor_chunk(distribute_tensor(torch.ones(5, 2), mesh, [Shard(0)]))


def test_a_shard_says_where_it_is() -> None:
    assert values(run_ranks(2, where_a_shard_is)) == [((0, 0), (3, 2)), ((3, 0), (2, 2))]
