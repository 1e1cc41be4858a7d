"""A Trainer's data: the same steps in every world, never more at once than fits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, SubsetRandomSampler, WeightedRandomSampler
from transformers import TrainerCallback, TrainerState

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ENV_MOST_WORKERS
from elastic_runtime.transformers import ElasticOptions, ElasticTrainer
from elastic_runtime.transformers.steps.step_callbacks import begin_at
from elastic_runtime.transformers.steps.train_batches import TrainBatches
from tests.unit.transformers.hf_trainers import Numbers, trainer

if TYPE_CHECKING:
    from pathlib import Path


def samples(data: TrainBatches, rank: int = 0, world: int = 1) -> list[list[int]]:
    """What a rank takes at once, from where the loader is to the end of the epoch."""
    data.loader.batch_sampler._place = rank, world
    data.loader.go_to(0)
    return [(batch["inputs"][:, 0] * 24).round().int().tolist() for batch in data.batches]


def test_a_step_is_as_large_as_all_workers_that_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_MOST_WORKERS, "3")
    made = trainer(tmp_path, gradient_accumulation_steps=2)
    assert TrainBatches(made, 0, 0).global_batch == 4 * 2 * 3
    assert TrainBatches(made, 10, 0).global_batch == 10
    assert TrainBatches(made, 0, 8).global_batch == 8
    with pytest.raises(UsageError, match="steps of 8 samples"):
        TrainBatches(made, 10, 8)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_with_fewer_ranks_a_step_has_more_pieces(tmp_path: Path, world: int) -> None:
    data = TrainBatches(trainer(tmp_path, per_device_train_batch_size=2), 10, 0)
    ranks = [samples(data, rank, world) for rank in range(world)]
    assert data.pieces == -(-10 // (2 * world))
    assert all(len(batch) <= 2 for rank in ranks for batch in rank)
    alone = samples(TrainBatches(trainer(tmp_path, per_device_train_batch_size=24), 24, 0))
    pieces = [len(rank) for rank in ranks]
    assert pieces == [len(data.batches)] * world
    taken = [i for at in range(pieces[0]) for rank in ranks for i in rank[at]]
    assert sorted(set(taken)) == list(range(24))
    first = [i for rank in ranks for piece in rank[: data.pieces] for i in piece]
    assert first == alone[0][:10]
    assert len(data.loader) == 3
    assert len(data.whole_epochs(4)) == 12


def test_the_orders_of_a_trainer(tmp_path: Path) -> None:
    given = samples(TrainBatches(trainer(tmp_path, train_sampling_strategy="sequential"), 24, 0))
    assert [i for batch in given for i in batch] == list(range(24))
    one = samples(TrainBatches(trainer(tmp_path, data_seed=3), 24, 0))
    other = samples(TrainBatches(trainer(tmp_path, seed=3), 24, 0))
    assert one == other != samples(TrainBatches(trainer(tmp_path), 24, 0))


class Sentences(Numbers):
    """Of unequal lengths."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= 24:  # it is looked through from the first to the last
            raise IndexError
        return {"input_ids": [1] * (1 + index % 6), "labels": 1.0}


def test_long_ones_come_together(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_dataset": Sentences(), "remove_unused_columns": False}
    made = trainer(tmp_path, train_sampling_strategy="group_by_length", **options)
    made.data_collator = lambda rows: {"lengths": [len(row["input_ids"]) for row in rows]}
    data = TrainBatches(made, 4, 0)
    first = [batch["lengths"] for batch in data.batches]
    assert sorted(n for lengths in first for n in lengths) == sorted(list(range(1, 7)) * 4)
    assert all(lengths == sorted(lengths, reverse=True) for lengths in first[1:])


def test_the_last_step_is_left_out_if_it_is_not_whole(tmp_path: Path) -> None:
    made = trainer(tmp_path, dataloader_drop_last=True)
    data = TrainBatches(made, 7, 0)
    assert len(data.loader) == 3
    for world in (1, 2):
        data = TrainBatches(made, 7, 0)
        taken = [i for rank in range(world) for b in samples(data, rank, world) for i in b]
        assert len(set(taken)) == 21
    with pytest.raises(UsageError, match="leaves nothing of 24 samples"):
        TrainBatches(made, 25, 0)


class Own(ElasticTrainer):
    """A user's trainer with a loader of its own."""

    loader: Any

    def get_train_dataloader(self) -> Any:
        return self.loader


def test_a_loader_of_the_users(tmp_path: Path) -> None:
    made = trainer(tmp_path, kind=Own)
    weights = torch.tensor([0.0] * 20 + [1.0] * 4)
    made.loader = DataLoader(Numbers(), 4, sampler=WeightedRandomSampler(weights, 12))
    taken = samples(TrainBatches(made, 4, 0))
    assert sum(map(len, taken)) == 12
    assert {i for batch in taken for i in batch} <= set(range(20, 24))
    own = elastic.DataLoader(Numbers(), 6, at_once=3)
    made.loader = own
    data = TrainBatches(made, 0, 0)
    assert (data.loader, data.global_batch, data.pieces) == (own, 6, 2)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (lambda: [1, 2], "gives a list"),
        (lambda: DataLoader(ChainDataset([]), 4), "train_dataset is iterable"),
        (lambda: DataLoader(Numbers(), 4, sampler=SubsetRandomSampler([1])), "order of a Subset"),
        (lambda: DataLoader(Numbers(), batch_sampler=[[1, 2]]), "order of a list"),
    ],
)
def test_data_that_cannot_be_continued(tmp_path: Path, loader: Any, says: str) -> None:
    made = trainer(tmp_path, kind=Own)
    made.loader = loader()
    with pytest.raises(UsageError, match=says):
        TrainBatches(made, 0, 0)


class Epochs(TrainerCallback):
    """What a callback sees of them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(state.epoch)


def test_epochs_are_counted_by_steps(tmp_path: Path) -> None:
    # The last step has 4 samples, and one micro-batch instead of three.
    saved = ElasticOptions(global_batch=10, in_place=False, every="1h")
    epochs = Epochs()
    trainer(tmp_path, saved, callbacks=[epochs], num_train_epochs=2).train()
    assert epochs.seen == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])


def data(folder: Path, **options: Any) -> TrainBatches:
    """Steps of 8 samples."""
    return TrainBatches(trainer(folder, **options), 8, 0)


def test_a_job_goes_on_exactly_where_a_checkpoint_was_made(tmp_path: Path) -> None:
    saved = ElasticOptions(global_batch=8, in_place=False, every="1h")
    trainer(tmp_path, saved, save_strategy="steps", save_steps=4).train()
    checkpoint = tmp_path / "out" / "checkpoint-4"
    position = json.loads((checkpoint / "elastic_loader.json").read_text())
    assert (position["epoch"], position["cursor"]) == (1, 8)
    begun = data(tmp_path)
    begin_at(str(checkpoint), TrainerState(epoch=0.5), begun)
    assert (begun.loader.epoch, begun.loader.cursor) == (1, 8)
    with pytest.raises(UsageError, match="of a data set of 24 samples, this one has 30"):
        begin_at(str(checkpoint), TrainerState(), data(tmp_path, train_dataset=Numbers(30)))


@pytest.mark.parametrize(
    ("epoch", "place", "warns"), [(2.0, (2, 0), 0), (1 + 2 / 3, (1, 16), 1), (1.9999, (2, 0), 0)]
)
def test_a_checkpoint_of_a_plain_trainer_has_no_exact_place(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    epoch: float,
    place: tuple[int, int],
    warns: int,
) -> None:
    begun = data(tmp_path)
    begin_at(str(tmp_path), TrainerState(epoch=epoch), begun)
    assert (begun.loader.epoch, begun.loader.cursor) == place
    assert caplog.text.count("in another order") == warns
