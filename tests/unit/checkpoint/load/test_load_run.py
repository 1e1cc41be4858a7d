"""One load of one rank: nothing is taken over before all of it is known to be good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import CheckpointError, CheckpointUsageError, DamagedCheckpoint
from elastic_runtime.worker.peers import Peers
from tests.checkpoints import write

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.checkpoint.format.manifest import CheckpointId

HERE = RankPosition()


class Saved:
    """A checkpoint of a model with one weight, and of a number."""

    def __init__(self, path: Path) -> None:
        self.storage = LocalStorage(path)
        self.storage.prepare()
        self.model = torch.nn.Linear(2, 1, bias=False)
        state = Entries({"model": self.model, "count": 7}).state(0)
        self.which: CheckpointId = write(self.storage, [state])
        self.mine = torch.nn.Linear(2, 1, bias=False)
        self.before = self.mine.weight.detach().clone()
        self.entries: dict[str, Any] = {"model": self.mine, "count": 1}

    def load(self, **options: Any) -> LoadRun:
        return LoadRun(self.storage, self.which, Entries(self.entries), HERE, **options)

    @property
    def file(self) -> Path:
        return self.storage.path / self.which.name / "rank-0.distcp"

    @property
    def untouched(self) -> bool:
        return bool(torch.equal(self.mine.weight, self.before)) and self.entries["count"] == 1

    def damage(self, part: str) -> None:
        """Flips a bit of the tensor or of the value; the size stays."""
        content = bytearray(self.file.read_bytes())
        weight = content.index(self.model.weight.detach().numpy().tobytes())
        value = content.rindex(b"PK")  # torch writes archives
        content[weight if part == "tensor" else value] ^= 1
        self.file.write_bytes(content)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "runs")


def test_everything_comes_back(saved: Saved) -> None:
    told: list[str] = []
    loaded = saved.load().run(Peers(), lambda: told.append("overwriting"))
    assert torch.equal(saved.mine.weight, saved.model.weight)
    assert (saved.entries["count"], told) == (7, ["overwriting"])
    assert (loaded.missing, loaded.surplus, loaded.reset) == ((), (), ())


@pytest.mark.parametrize("careful", [True, False])
def test_damage_changes_nothing_where_the_state_may_still_be_used(
    saved: Saved, careful: bool
) -> None:
    saved.damage("tensor")
    told: list[str] = []
    with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp"):
        saved.load(careful=careful).run(Peers(), lambda: told.append("overwriting"))
    assert told == ([] if careful else ["overwriting"])
    assert saved.entries["count"] == 1
    if careful:
        assert saved.untouched


def test_no_tensor_is_touched_before_all_values_are_known_to_be_good(saved: Saved) -> None:
    saved.damage("value")
    with pytest.raises(DamagedCheckpoint):
        saved.load().run(Peers())
    assert saved.untouched


def test_a_file_of_another_size_is_seen_before_anything_is_read(saved: Saved) -> None:
    size = saved.file.stat().st_size
    saved.file.write_bytes(b"short")
    with pytest.raises(DamagedCheckpoint, match=f"damaged: 5 bytes instead of {size}"):
        saved.load().prepare()
    saved.file.unlink()
    with pytest.raises(DamagedCheckpoint, match=r"rank-0\.distcp is missing"):
        saved.load().prepare()


def test_a_checkpoint_that_is_deleted_meanwhile_is_said_to_be_gone(saved: Saved) -> None:
    load = saved.load()
    load.prepare()
    manifest = saved.storage.read_manifest(saved.which)
    assert manifest is not None
    saved.storage.remove(manifest)
    with pytest.raises(DamagedCheckpoint, match="was deleted while it was being read"):
        load.read()


def test_other_keys_are_an_error_unless_they_are_allowed(saved: Saved) -> None:
    del saved.entries["count"]
    saved.entries["other"] = 3
    with pytest.raises(CheckpointError, match="other"):
        saved.load().run(Peers())
    loaded = saved.load(strict=False).run(Peers())
    assert (loaded.missing, loaded.surplus) == (("other",), ("count",))
    assert torch.equal(saved.mine.weight, saved.model.weight)


def test_a_checkpoint_of_another_program_is_refused_although_keys_may_differ(saved: Saved) -> None:
    saved.entries = {"other": 3}
    with pytest.raises(CheckpointUsageError, match="belongs to another one"):
        saved.load(strict=False).run(Peers())
