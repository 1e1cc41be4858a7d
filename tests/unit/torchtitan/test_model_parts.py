"""The parts of a model, the layout of its ranks and the progress of its job, in any world."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import elastic_runtime.torchtitan as titan
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.errors import UsageError
from elastic_runtime.parts.per_rank import RankPosition
from elastic_runtime.torchtitan.model_parts import ModelParts, OptimizerParts
from elastic_runtime.torchtitan.train_progress import TrainProgress
from elastic_runtime.torchtitan.world_degrees import Degrees
from elastic_runtime.worker.peers import Peers
from tests.checkpoints import parts_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.checkpoint.format.manifest import CheckpointId


class Stage(nn.Module):  # type: ignore[misc]
    """Some layers of a model of four, by the names that they have in the whole."""

    def __init__(self, *layers: int, wrapped: bool = False) -> None:
        super().__init__()
        made = {str(layer): nn.Linear(3, 3) for layer in layers}
        wrap = checkpoint_wrapper if wrapped else lambda layer: layer
        self.layers = nn.ModuleDict({name: wrap(layer) for name, layer in made.items()})

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            values = layer(values)
        return values


def entries(*stages: Stage, rate: float = 0.1) -> dict[str, object]:
    optimizers = [torch.optim.AdamW(stage.parameters(), lr=rate) for stage in stages]
    for stage, optimizer in zip(stages, optimizers, strict=True):
        stage(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return {"model": ModelParts(stages), "optimizer": OptimizerParts(optimizers)}


Saved = tuple[LocalStorage, "CheckpointId"]


def saved(folder: Path, *ranks: dict[str, object]) -> Saved:
    storage = LocalStorage(folder)
    storage.prepare()
    return storage, write(storage, [parts_of(one).saved(r) for r, one in enumerate(ranks)])


def load(checkpoint: Saved, into: dict[str, object]) -> None:
    LoadRun(*checkpoint, parts_of(into), RankPosition()).run(Peers())


def test_stages_of_two_ranks_become_one_model(tmp_path: Path) -> None:
    first, second, whole = Stage(0, 1), Stage(2, 3), Stage(0, 1, 2, 3)
    ranks = entries(first), entries(second)
    checkpoint = saved(tmp_path, *ranks)
    into = entries(whole, rate=0.5)
    load(checkpoint, into)
    for layer, stage in (("1", first), ("2", second)):
        assert torch.equal(whole.layers[layer].weight, stage.layers[layer].weight)
    state = into["optimizer"].state  # type: ignore[attr-defined]
    theirs = ranks[1]["optimizer"].state  # type: ignore[attr-defined]
    moment = state[whole.layers["3"].weight]["exp_avg"]
    assert torch.equal(moment, theirs[second.layers["3"].weight]["exp_avg"])
    # Settings are those of the program: how they were grouped was another layout's.
    [optimizer] = into["optimizer"]._optimizers  # type: ignore[attr-defined]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_one_model_becomes_several_parts_of_one_rank(tmp_path: Path) -> None:
    whole = Stage(0, 1, 2, 3)
    checkpoint = saved(tmp_path, entries(whole))
    parts = Stage(0, 2), Stage(1, 3)
    into = entries(*parts)
    load(checkpoint, into)
    assert torch.equal(parts[1].layers["3"].weight, whole.layers["3"].weight)
    state = into["optimizer"].state  # type: ignore[attr-defined]
    assert len(state) == 8
    assert float(state[parts[1].layers["3"].weight]["step"]) == 1


def test_checkpointed_activations_do_not_change_the_names(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, entries(Stage(0, 1)))
    wrapped = Stage(0, 1, wrapped=True)
    into = entries(wrapped)
    load(checkpoint, into)
    assert parts_of(into).saved(0).keys() == parts_of(entries(Stage(0, 1))).saved(0).keys()


class Trainer:
    """What is looked at of an ``ElasticTrainer``."""

    def __init__(self, ranks: int, batch: int = 10) -> None:
        mesh = SimpleNamespace(size=lambda: ranks) if ranks > 1 else None
        self.parallel_dims = SimpleNamespace(get_optional_mesh=lambda name: mesh)
        self.config = SimpleNamespace(training=SimpleNamespace(seq_len=16))
        self.global_batch = batch
        self.step = self.ntokens_seen = 0
        self.told: list[int] = []

    def go_on(self, saved: int) -> None:
        self.told.append(saved)


def test_tokens_are_those_of_the_job() -> None:
    trainer = Trainer(ranks=4)
    progress = TrainProgress(trainer)
    for step in (1, 2):
        trainer.step = step
        trainer.ntokens_seen += 99  # with what was filled up
        progress.commit()
    assert progress.state_dict() == {"step": 2, "tokens": 320, "global_batch": 10}
    assert trainer.ntokens_seen == 80


def test_another_world_goes_on_with_its_part() -> None:
    trainer = Trainer(ranks=1)
    progress = TrainProgress(trainer)
    progress.load_state_dict({"step": 2, "tokens": 320, "global_batch": 12})
    assert (trainer.step, trainer.ntokens_seen, trainer.told) == (2, 320, [12])


def test_what_is_saved_is_of_the_last_commit() -> None:
    # torchtitan counts a step before it makes it, also the one that the data do not suffice for.
    trainer: Any = Trainer(ranks=2)
    progress = TrainProgress(trainer)
    trainer.step = 1
    progress.commit()
    trainer.step = 2
    assert progress.state_dict()["step"] == 1


def test_a_run_that_torchtitan_began() -> None:
    progress = TrainProgress(Trainer(ranks=4))
    progress.begin_at(100, 1000)
    assert progress.state_dict()["tokens"] == 4000


@pytest.mark.parametrize(
    ("asked", "world", "replicas"),
    [
        (Degrees(model=1, shard=-1, replicate=1), 6, 1),
        (Degrees(model=2, shard=-1, replicate=1), 6, 1),
        (Degrees(model=1, shard=-1, replicate=2), 6, 2),
        (Degrees(model=1, shard=4, replicate=1), 12, 3),  # HSDP: a further replica a node
        (Degrees(model=2, shard=4, replicate=9), 8, 1),
        (Degrees(model=1, shard=1, replicate=1), 5, 5),  # DDP
    ],
)
def test_a_world_that_fits(asked: Degrees, world: int, replicas: int) -> None:
    assert asked.fitted(world) == Degrees(asked.model, asked.shard, replicas)


@pytest.mark.parametrize(
    ("asked", "world", "unit"),
    [
        (Degrees(model=4, shard=-1, replicate=1), 6, 4),
        (Degrees(model=1, shard=-1, replicate=2), 5, 2),
        (Degrees(model=2, shard=4, replicate=1), 12, 8),
        (Degrees(model=1, shard=8, replicate=1), 4, 8),
    ],
)
def test_a_world_that_does_not(asked: Degrees, world: int, unit: int) -> None:
    with pytest.raises(UsageError, match=f"{world} ranks .* groups of {unit} "):
        asked.fitted(world)


@pytest.mark.parametrize(
    ("asked", "ranks", "most"),
    [
        (Degrees(model=1, shard=-1, replicate=1), 6, 6),
        (Degrees(model=4, shard=-1, replicate=1), 10, 2),
        (Degrees(model=2, shard=4, replicate=1), 20, 8),
        (Degrees(model=1, shard=-1, replicate=2), 7, 6),
    ],
)
def test_the_data_parallel_ranks_of_the_largest_world(
    asked: Degrees, ranks: int, most: int
) -> None:
    assert asked.data_ranks(ranks) == most


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", version)
    for name in titan.__all__:
        with pytest.raises(UsageError, match=r"none; pip install 'elastic-runtime\[torchtitan\]'"):
            getattr(titan, name)
    with pytest.raises(AttributeError, match="'Trainer'"):
        titan.Trainer  # noqa: B018
