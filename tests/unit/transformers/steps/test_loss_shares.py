"""What the loss of a micro-batch counts, for each kind of loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from elastic_runtime.transformers.steps.counted_labels import CountedLabels
from elastic_runtime.transformers.steps.loss_shares import LossShares
from elastic_runtime.transformers.steps.train_batches import TrainBatches
from tests.unit.transformers.hf_trainers import trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LABELS = {"labels": torch.ones(4, 3)}


class Rank:
    """One of some ranks, in a step of 10 samples, of which it takes 4 at once."""

    def __init__(self, folder: Path, rank: int = 0, world: int = 1, **options: Any) -> None:
        self.trainer = trainer(folder, **options)
        self.data = TrainBatches(self.trainer, 10, 0)
        self.data.loader.batch_sampler._place = rank, world
        self.pieces = self.trainer.current_gradient_accumulation_steps = self.data.pieces
        self.losses = LossShares(self.trainer, self.data.batches)

    def weights(self, labels: Any = None, *, used: bool = False) -> list[float]:
        """Those of the micro-batches of a step, with a loss that uses the number of labels."""
        found = []
        batches = iter(self.data.batches)
        with self.losses.next_step():
            for _ in range(self.pieces):
                next(batches)
        for _ in range(self.pieces):
            with self.losses.micro_batch(LABELS, labels) as given:
                if used:
                    _ = torch.tensor(3.0) / given
                found.append(self.losses.decide())
        return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_means_make_up_the_mean_over_the_step(tmp_path: Path, world: int) -> None:
    ranks = [Rank(tmp_path, rank, world) for rank in range(world)]
    shares = [[weight / each.pieces for weight in each.weights()] for each in ranks]
    assert sum(map(sum, shares)) / world == pytest.approx(1)
    first = {1: 4, 2: 3, 3: 4}[world]  # a share is cut evenly
    assert shares[0][0] * 10 == pytest.approx(first * world)


def test_a_sum_by_all_labels_is_right_as_it_is(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, 2)
    rank.trainer.model_accepts_loss_kwargs = True
    assert rank.weights(torch.tensor(7), used=True) == [1.0] * rank.pieces


def test_a_mean_that_was_taken_for_such_a_sum_counts_as_its_share(tmp_path: Path) -> None:
    # As of a BertForSequenceClassification, which the Trainer does not divide by the pieces.
    rank = Rank(tmp_path, 0, 2)
    plain = [weight / rank.pieces for weight in rank.weights()]
    rank.trainer.model_accepts_loss_kwargs = True
    assert rank.weights(torch.tensor(7)) == plain
    rank.trainer.loss_is_scaled_for_ga = False  # now it does
    assert rank.weights(torch.tensor(7)) == pytest.approx([w * rank.pieces for w in plain])


def test_the_factor_of_such_a_sum_is_taken_back(tmp_path: Path, monkeypatch: Any) -> None:
    rank = Rank(tmp_path, 0, 2)
    rank.trainer.model_accepts_loss_kwargs = True
    monkeypatch.setattr(type(rank.trainer.args), "world_size", 2)
    used, unused = CountedLabels.of(7), CountedLabels.of(7)
    _ = torch.tensor(3.0) / used
    assert rank.losses.unmultiplied(6.0, used) == 6.0
    assert rank.losses.unmultiplied(6.0, unused) == 3.0
    rank.trainer.args.average_tokens_across_devices = False
    assert rank.losses.unmultiplied(6.0, unused) == 6.0


def test_a_mean_over_a_ranks_own_labels_counts_as_its_share(tmp_path: Path) -> None:
    rank = Rank(tmp_path, 0, 3, average_tokens_across_devices=False)
    rank.trainer.model_accepts_loss_kwargs = True
    assert rank.weights(torch.tensor(7), used=True) == pytest.approx([4 / 10 * 3])


def test_a_smoothed_mean_counts_as_its_labels(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.trainer.model_accepts_loss_kwargs = True
    rank.trainer.label_smoother = object()
    assert rank.weights(torch.tensor(48)) == [12 / 48] * 3


def test_a_compiled_model_is_believed(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.trainer.model_accepts_loss_kwargs = True
    rank.trainer.args.torch_compile = True
    labels = torch.tensor(7)
    next(iter(rank.data.batches))
    with rank.losses.micro_batch(LABELS, labels) as given:
        assert given is labels
        assert rank.losses.decide() == 1.0


def test_a_sample_that_is_only_filled_in_counts_nothing(tmp_path: Path) -> None:
    # A step of 10 samples, and 12 ranks.
    spare, other = Rank(tmp_path, 11, 12), Rank(tmp_path, 0, 12)
    for rank in (spare, other):
        rank.trainer.model_accepts_loss_kwargs = True
    assert spare.weights(torch.tensor(7), used=True) == spare.weights() == [0.0]
    assert other.weights(torch.tensor(7), used=True) == [1.0]
    batch = {"labels": torch.ones(1, 2), "inputs": torch.ones(1, 2)}
    with spare.losses.next_step():
        counted = spare.losses.countable([batch])
    assert counted[0]["labels"].tolist() == [[-100, -100]]
    assert batch["labels"].tolist() == [[1, 1]], "the model must have a label to compute with"
    assert spare.losses.countable([batch]) == [batch], "an evaluation has its own samples"
    with other.losses.next_step():
        assert other.losses.countable([batch])[0] is batch


LOSS = torch.tensor(14.0)


@pytest.mark.parametrize(
    "use",
    [
        lambda n: LOSS / n,
        lambda n: LOSS.div(n),
        lambda n: LOSS * (1 / n),
        lambda n: LOSS / n.to("cpu").detach(),
        lambda n: LOSS / torch.as_tensor(n).clamp(min=1),
        lambda n: LOSS / n.item(),
        lambda n: LOSS / float(n),
        lambda n: torch.true_divide(input=LOSS, other=n),
    ],
)
def test_it_was(use: Callable[[Any], Any]) -> None:
    number = CountedLabels.of(7)
    result = use(number)
    assert number.uses
    assert float(result) == 2
    assert type(result) is not CountedLabels


def test_it_was_not() -> None:
    number = CountedLabels.of(torch.tensor(7))
    moved = number.to(torch.device("cpu"))
    assert torch.is_tensor(moved)
    assert (moved.device.type, moved.dtype, moved.shape, moved.dim()) == ("cpu", torch.int64, (), 0)
    assert not number.uses
    assert CountedLabels.of(number) is number


def test_a_loss_of_transformers_uses_it() -> None:
    number = CountedLabels.of(torch.tensor(5))
    logits = torch.randn(1, 6, 8, requires_grad=True)
    labels = torch.arange(6)[None]
    loss = ForCausalLMLoss(logits, labels, 8, num_items_in_batch=number)
    loss.backward()
    assert number.uses
    plain = ForCausalLMLoss(logits, labels, 8, num_items_in_batch=torch.tensor(5))
    assert loss.item() == plain.item()
