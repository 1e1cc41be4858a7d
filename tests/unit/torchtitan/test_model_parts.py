"""Several parts of a model, and their optimizers, are saved and loaded as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from elastic_runtime.checkpoint.entries.flat_state import Entries
from elastic_runtime.checkpoint.entries.per_rank_values import RankPosition
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.torchtitan.model_parts import ModelParts, OptimizerParts
from elastic_runtime.worker.peers import Peers
from tests.checkpoints import write

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
    return storage, write(storage, [Entries(one).state(r) for r, one in enumerate(ranks)])


def load(checkpoint: Saved, into: dict[str, object]) -> None:
    LoadRun(*checkpoint, Entries(into), RankPosition()).run(Peers())


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
    assert Entries(into).state(0).keys() == Entries(entries(Stage(0, 1))).state(0).keys()
