"""A job goes on in a world of another size and kind, with everything that it had."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from elastic_runtime import PerRank, State
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointError
from tests.checkpoints import with_outline
from tests.hostile import make_newer
from tests.ranks import entries_of, kill_self, run_ranks, values
from tests.trained import cut_off, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest

DDP, FSDP = False, True


class Odd(nn.Module):
    """Shapes that no world divides, and every kind of tensor beside the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(5, 7)
        self.narrow = nn.Linear(7, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("wave", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("coarse", torch.zeros(9, dtype=torch.bfloat16)[::2])
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("turned", torch.zeros(4, 6).t())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.steps += 1
            for buffer in (self.wave, self.coarse, self.turned):
                buffer += torch.arange(buffer.numel()).reshape(buffer.shape).to(buffer.dtype)
            self.mask.logical_not_()
        return self.narrow(self.wide(inputs)) * self.scale


def whole(tensor: torch.Tensor) -> list[Any]:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().flatten().tolist()


def life(path: Path, sharded: bool, steps: int) -> dict[str, Any]:
    """Resumes, trains on the same data in any world, saves; returns what was found at the start."""
    rank, world = 0, 1
    if sharded and not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model: nn.Module = Odd()
    if sharded:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    wrapped = nn.parallel.DistributedDataParallel(model) if world > 1 and not sharded else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    rng, seen = torch.Generator().manual_seed(rank), PerRank([])
    state = State(model=wrapped, optim=optimizer, rng=rng, seen=seen, best=0)
    state.checkpoints(path)
    with trained(state):
        found: dict[str, Any] = {"step": state.step, "best": state.best, "seen": seen.value}
        found["drawn"] = torch.rand(1, generator=rng).item()
        found["state"] = state_of(model, optimizer)
        state.best += 1
        for _ in range(steps):
            optimizer.zero_grad()
            wrapped(torch.ones(4, 5)).square().mean().backward()
            optimizer.step()
            seen.value = [*seen.value, rank]
            state.commit()
    return {**found, "left": state_of(model, optimizer)}


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[Any]]:
    """All numbers of a parameter, of what its optimizer keeps, and so on; then the buffers."""
    return [
        whole(tensor)
        for parameter in model.parameters()
        for tensor in (parameter, *[v for _, v in sorted(optimizer.state[parameter].items())])
    ] + [whole(buffer) for buffer in model.buffers()]


def outlined_life(path: Path, sharded: bool, steps: int) -> dict[str, Any]:
    """The same, saved as if it had many parts."""
    with with_outline():
        return life(path, sharded, steps)


SHORT_WAY = [(DDP, 3), (DDP, 2), (FSDP, 3), (FSDP, 2), (DDP, 1)]
LONG_WAY = [(FSDP, 8), (FSDP, 3), (DDP, 1), (DDP, 8), (FSDP, 1)]
GOLDEN = pytest.mark.golden("sharded checkpoints go to any world")


@pytest.mark.parametrize(
    ("way", "live"), [pytest.param(SHORT_WAY, life, marks=GOLDEN), (LONG_WAY, outlined_life)]
)
def test_from_world_to_world(
    tmp_path: Path, way: list[tuple[bool, int]], live: Callable[..., Any]
) -> None:
    reference, left = tmp_path / "alone", None
    for lifetime, (sharded, world) in enumerate(way):
        found = values(run_ranks(world, live, tmp_path / "many", sharded, 2))
        (expected,) = values(run_ranks(1, life, reference, DDP, 2))
        for each in found:
            assert (each["step"], each["best"]) == (2 * lifetime, lifetime)
            assert each["state"] == found[0]["state"], "the ranks differ"
            assert each["state"] == left or lifetime == 0, "it is not what was saved"
        left = found[0]["left"]
        if lifetime == 0:
            continue  # every world begins with parameters of its own
        assert len(found[0]["state"]) == len(expected["state"]) == 4 * 5 + 6
        assert found[0]["state"][-6:] == expected["state"][-6:], "buffers count steps, not ranks"
        assert len({each["drawn"] for each in found}) == world
        assert all(each["seen"] == [] for each in found), "of ranks that are no more"


def read_by_dcp(path: Path) -> dict[str, list[Any]]:
    """All tensors of a checkpoint as plain DCP finds them, without any code of ours."""
    reader = dcp.FileSystemReader(path)
    told = reader.read_metadata().state_dict_metadata
    tensors = {
        key: torch.zeros(about.size, dtype=about.properties.dtype)
        for key, about in told.items()
        if isinstance(about, TensorStorageMetadata)
    }
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    dcp.load(tensors, storage_reader=reader, planner=planner)
    return {key: tensor.flatten().tolist() for key, tensor in tensors.items()}


@pytest.mark.parametrize("sharded", [DDP, FSDP])
def test_plain_dcp_reads_what_four_ranks_have_written(tmp_path: Path, sharded: bool) -> None:
    left = values(run_ranks(4, life, tmp_path, sharded, 2))[0]["left"]
    (found,) = values(run_ranks(1, read_by_dcp, tmp_path / "step-2.term-1"))
    parts = ("", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
    parameters = ("scale", "wide.weight", "wide.bias", "narrow.weight")
    keys = [
        f"optim.state.model.{name}.{part}" if part else f"model.{name}"
        for name in parameters
        for part in parts
    ]
    assert [found[key] for key in keys] == left[: len(keys)]


def test_in_the_same_world_each_rank_has_its_own_again(tmp_path: Path) -> None:
    first = values(run_ranks(3, life, tmp_path, DDP, 1))
    again = values(run_ranks(3, outlined_life, tmp_path, FSDP, 1))
    assert [each["seen"] for each in again] == [[0], [1], [2]]
    assert not {each["drawn"] for each in first} & {each["drawn"] for each in again}
    assert [each["drawn"] for each in again] == [
        torch.rand(2, generator=torch.Generator().manual_seed(rank))[1].item() for rank in range(3)
    ]


def other_program(path: Path, strict: bool) -> tuple[int, int, int | None, float]:
    """Has a layer less and a value more than the one that saved."""
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    nn.init.constant_(model["body"].weight, 7.0)
    state = State(model=model, fresh=5)
    state.checkpoints(path)
    with cut_off(state, strict=strict):
        old = getattr(state, "old", None)
        return state.step, state.fresh, old, model["body"].weight.sum().item()


def commit_steps(state: State, path: Path, steps: int) -> None:
    """Saves a State after so many steps."""
    state.checkpoints(path)
    with trained(state):
        for _ in range(steps):
            state.commit()


def test_what_does_not_fit_is_named_by_all_ranks_or_left_out(tmp_path: Path) -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "tail": nn.Linear(2, 1, bias=False)})
    nn.init.constant_(model["body"].weight, 1.0)
    commit_steps(State(model=model, old=1), tmp_path, 4)
    outcomes = run_ranks(2, other_program, tmp_path, True)
    assert {outcome.error for outcome in outcomes} == {"CheckpointUsageError"}
    assert outcomes[0].text == outcomes[1].text
    assert "fresh, model.head.bias, model.head.weight;" in outcomes[0].text
    assert "it also has model.tail.weight;" in outcomes[0].text
    assert "strict=False" in outcomes[0].text
    assert values(run_ranks(2, other_program, tmp_path, False)) == [(4, 5, 1, 4.0)] * 2


def one(value: float) -> nn.ParameterList:
    """A module with one number."""
    return nn.ParameterList([torch.tensor(value)])


def test_what_was_left_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commit_steps(State(part=one(1.0), a=1, old=one(2.0)), tmp_path, 1)
    state = State(part=one(0.0), a=0, new=one(3.0))
    state.checkpoints(tmp_path)
    with caplog.at_level(logging.INFO), cut_off(state, strict=False):
        assert (state.part[0].item(), state.a, state.new[0].item()) == (1.0, 1, 3.0)
    (told,) = [r.getMessage() for r in caplog.records if "checkpoint.partly" in r.getMessage()]
    assert "['new.0']" in told
    assert "['old.0']" in told


def test_nothing_that_fits_is_another_jobs_checkpoint(tmp_path: Path) -> None:
    commit_steps(State(theirs=one(1.0)), tmp_path, 1)
    state = State(ours=one(1.0))
    state.checkpoints(tmp_path)
    what = r"step-1\.term-1 has none of the keys of this program"
    with pytest.raises(CheckpointError, match=what), cut_off(state, strict=False):
        pass


class Work(State):
    model: nn.Linear


def work(path: Path) -> Work:
    state = Work(model=nn.Linear(50, 50), number=0, rng=torch.Generator())
    state.checkpoints(path)
    return state


def save_steps(path: Path, *steps: int) -> None:
    with trained(state := work(path)):
        for step in steps:
            nn.init.constant_(state.model.weight, float(step))
            state.commit()
            state.save(sync=True)


def save_outlined(path: Path, *steps: int) -> None:
    """The same, as if they had many parts."""
    with with_outline():
        save_steps(path, *steps)


def resumed(path: Path) -> tuple[int, float]:
    with cut_off(state := work(path)):
        return state.step, state.model.weight[0, 0].item()


DAMAGE = pytest.mark.golden("damage is found, and the older one taken")


@pytest.mark.parametrize(
    ("save", "beside"),
    [pytest.param(save_steps, [], marks=DAMAGE), (save_outlined, [".outline"])],
)
def test_a_flipped_bit_in_any_file_makes_all_ranks_take_the_older_one(
    tmp_path: Path, save: Callable[..., None], beside: list[str]
) -> None:
    values(run_ranks(2, save, tmp_path, 1, 2))
    checkpoint = tmp_path / "step-2.term-1"
    names = entries_of(checkpoint)
    assert names == [".metadata", *beside, "MANIFEST.json", "rank-0.distcp", "rank-1.distcp"]
    assert resumed(tmp_path) == (2, 2.0)
    for name in names:
        path = checkpoint / name
        content = path.read_bytes()
        # Heads and tails of the archives as well as what is in them.
        places = {0, 1, 40, len(content) - 1, *range(0, len(content), len(content) // 13)}
        for place in sorted(places):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            # Nobody needs what DCP is told where there is an outline.
            harmless = bool(beside) and name == ".metadata"
            found = (2, 2.0) if harmless else (1, 1.0)
            assert resumed(tmp_path) == found, f"byte {place} of {name}"
        path.write_bytes(content[:-2])
        assert resumed(tmp_path) == (1, 1.0), f"{name} cut off"
        path.unlink()
        if name != "MANIFEST.json":  # without it there is no checkpoint
            assert resumed(tmp_path) == (1, 1.0), f"no {name}"
        path.write_bytes(content)
    assert values(run_ranks(3, resumed, tmp_path)) == [(2, 2.0)] * 3
    for path in [checkpoint / name for name in ("rank-1.distcp", *beside)]:
        content = path.read_bytes()
        path.write_bytes(b"")
        assert values(run_ranks(3, resumed, tmp_path)) == [(1, 1.0)] * 3
        assert path.exists()
        path.write_bytes(content)


def test_a_checkpoint_of_a_newer_version_stops_the_job(tmp_path: Path) -> None:
    """To go on from an older one would be to lose, without a word, what it holds."""
    values(run_ranks(1, save_steps, tmp_path, 1, 2))
    make_newer(tmp_path / "step-2.term-1")
    for outcome in run_ranks(2, resumed, tmp_path):
        assert outcome.error == "CheckpointUsageError"
        assert "step-2.term-1/MANIFEST.json has format 3" in outcome.text
        assert "upgrade it" in outcome.text


def test_a_checkpoint_that_is_deleted_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It disappears between the choice of it and its first file."""
    save_steps(tmp_path, 1, 2)
    read_manifest, doomed = LocalStorage.read_manifest, 2

    def read_and_delete(self: LocalStorage, which: CheckpointId) -> Manifest | None:
        manifest = read_manifest(self, which)
        if which.step == doomed:
            shutil.rmtree(tmp_path / which.name)
        return manifest

    monkeypatch.setattr(LocalStorage, "read_manifest", read_and_delete)
    assert resumed(tmp_path) == (1, 1.0)
    doomed = 1
    with pytest.raises(
        CheckpointError, match=r"step-1\.term-1 was deleted while it was being read"
    ):
        resumed(tmp_path)


def worth(path: Path, fatal: str) -> list[str]:
    """Rank 1 dies in one step of a load; says what memory is worth before and after."""
    if dist.get_rank() == 1:
        setattr(LoadRun, fatal, lambda _: kill_self())
    state = State(model=nn.Linear(50, 50)).keep_in_memory()
    state.checkpoints(path)
    state.remember_commit(1)
    before = state.rank_status().condition.name
    with contextlib.suppress(RuntimeError), cut_off(state):
        pass
    return [before, state.rank_status().condition.name]


@pytest.mark.parametrize(
    ("fatal", "after"), [("prepare", "CLEAN"), ("read", "DIRTY"), ("restore", "DIRTY")]
)
def test_memory_that_may_be_overwritten_is_no_commit(
    tmp_path: Path, fatal: str, after: str
) -> None:
    commit_steps(State(model=nn.Linear(50, 50)), tmp_path, 2)
    survivor, victim = run_ranks(2, worth, tmp_path, fatal)
    assert victim.signal == signal.SIGKILL
    assert survivor.value == ["CLEAN", after]
