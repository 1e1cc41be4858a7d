"""What configs become; each check is a function that raises if it is not so. One process for all.

torchtitan takes seconds to import, and changes its process: so this is not done in that of the
tests.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass, field, fields
from typing import Any

import cpu_device  # noqa: F401  # the first import
import pytest
import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.config import ConfigManager
from torchtitan.hf_datasets.text_datasets import ChatDataLoader, HuggingFaceTextDataLoader
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.torchtitan import (
    ElasticCheckpointManager,
    ElasticMixin,
    ElasticTrainer,
    elastic,
    elastic_dataloader,
)

MODULE = ["--module", "elastic_runtime.torchtitan"]


def parsed(*words: str) -> Any:
    return ConfigManager().parse_args([*MODULE, "--config", *words])


def check_a_config_of_torchtitans_is_found_by_its_name() -> None:
    config = parsed("llama3_debugmodel", "--training.steps", "7", "--checkpoint.every", "5m")
    assert config._owner is ElasticTrainer
    assert isinstance(config.checkpoint, ElasticCheckpointManager.Config)
    assert config.checkpoint.enable
    assert (config.checkpoint.every, config.checkpoint.interval) == ("5m", 10)
    assert config.training.steps == 7
    assert config.dataloader.dataset == "c4_test"


def check_options_of_the_loader_are_still_there() -> None:
    config = parsed(
        "llama3_debugmodel", "--dataloader.streams", "4", "--dataloader.num_workers", "2"
    )
    assert (config.dataloader.streams, config.dataloader.num_workers) == (4, 2)


def check_a_function_of_ones_own_is_found_by_its_path() -> None:
    config = parsed("config_checks.mine")
    assert config.training.local_batch_size == 3
    assert issubclass(config._owner, OwnTrainer)
    assert issubclass(config._owner, ElasticMixin)


def check_what_there_is_not_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="'llama3_nothing' not found") as caught:
        parsed("llama3_nothing")
    assert "llama3_debugmodel" in str(caught.value)
    assert "enable_fused_swiglu" not in str(caught.value)  # which makes no config of nothing
    with pytest.raises(UsageError, match=r"has no function nothing; .*mine"):
        parsed("config_checks.nothing")
    with pytest.raises(UsageError, match="there is no module no_such_package"):
        parsed("no_such_package.mine")


def check_the_same_config_twice_is_the_same() -> None:
    once = elastic(llama3_debugmodel(), every="5m")
    again = elastic(once)
    assert type(again) is type(once)
    assert type(again.dataloader) is type(once.dataloader)
    assert again.checkpoint == once.checkpoint
    assert type(elastic(mine())) is type(elastic(mine()))


def check_what_is_given_is_left_alone() -> None:
    config = llama3_debugmodel()
    before = config.to_dict()
    elastic(config, every="5m")
    assert config.to_dict() == before
    assert type(config.dataloader) is HuggingFaceTextDataLoader.Config


def check_settings_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"no evry; it has .*every"):
        elastic(llama3_debugmodel(), evry="5m")
    for name in ("every", "keep_every", "snapshots"):
        with pytest.raises(CheckpointUsageError, match=f"{name}='often'"):
            elastic(llama3_debugmodel(), **{name: "often"})
    with pytest.raises(UsageError, match="not a Config"):
        elastic(HuggingFaceTextDataLoader.Config())
    with pytest.raises(UsageError, match="takes the config of a torchtitan Trainer, not a dict"):
        elastic({})


def check_a_loader_without_a_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="Bare has no data set that can be cut into streams"):
        elastic_dataloader(Bare.Config())


def check_required_fields_of_a_loader_are_kept() -> None:
    config = elastic_dataloader(ChatDataLoader.Config(dataset_path="x", sample_processor=print))
    assert config.sample_processor is print
    assert {f.name for f in fields(config)} > {"streams", "infinite"}


def check_our_manager_wants_our_trainer_and_loader() -> None:
    manager = ElasticCheckpointManager.Config()
    given = {"model_parts": [], "optimizers": [], "lr_schedulers": [], "sd_adapter": None}
    with pytest.raises(UsageError, match="needs ElasticTrainer and a loader"):
        manager.build(states={"train_state": object()}, dataloader=None, **given)


def check_positions_are_not_for_torchtitans_own_manager() -> None:
    loader = counted().build(dp_world_size=2, dp_rank=0, local_batch_size=2)
    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(UsageError, match="saved by ElasticCheckpointManager only"):
            call()
    with pytest.raises(UsageError, match="needs ElasticTrainer"):
        next(iter(loader))


def check_ranks_with_less_fill_up_with_what_does_not_count() -> None:
    found = []
    for rank in range(3):
        loader = counted().build(dp_world_size=3, dp_rank=rank, local_batch_size=2)
        loader.plan(4, 2)
        inputs, labels = next(iter(loader))
        assert labels.shape == inputs["input"].shape == (2, 3)
        found += [row.tolist() for row in labels if (row != IGNORE_INDEX).any()]
    assert sorted(found) == [[0] * 3, [100] * 3, [200] * 3, [300] * 3]


def check_a_rank_without_any_stream_takes_part() -> None:
    loader = counted().build(dp_world_size=9, dp_rank=8, local_batch_size=1)
    loader.plan(4, 1)
    batches = iter(loader)
    for _ in range(3):
        inputs, labels = next(batches)
        assert (labels == IGNORE_INDEX).all()
        assert inputs["input"].shape == (1, 3)
    loader.commit()
    assert loader.own_pieces() == {}


def check_labels_that_are_no_tokens_cannot_be_filled_up() -> None:
    loader = counted(real=True).build(dp_world_size=3, dp_rank=2, local_batch_size=2)
    loader.plan(4, 2)
    with pytest.raises(UsageError, match="only token ids can be filled up"):
        next(iter(loader))


def check_only_committed_steps_move_the_positions() -> None:
    loader = counted().build(dp_world_size=1, dp_rank=0, local_batch_size=4)
    loader.plan(4, 4)
    batches = iter(loader)
    next(batches)
    next(batches)  # ahead
    assert {name: one["next"] for name, one in loader.own_pieces().items()} == {
        "0": 0,
        "1": 100,
        "2": 200,
        "3": 300,
    }
    loader.commit()
    assert loader.own_pieces()["3"]["next"] == 301
    other = counted().build(dp_world_size=2, dp_rank=1, local_batch_size=2)
    pieces = loader.own_pieces()
    needed = other.needed_pieces(list(pieces))
    assert sorted(needed) == ["2", "3"]
    other.take_pieces({name: pieces[name] for name in needed})
    other.plan(4, 2)
    assert next(iter(other))[1].tolist() == [[201] * 3, [301] * 3]


def check_another_number_of_streams_is_adopted_or_refused() -> None:
    saved = [str(number) for number in range(8)]
    loader = counted().build(dp_world_size=2, dp_rank=1, local_batch_size=2)
    assert sorted(loader.needed_pieces(saved)) == ["4", "5", "6", "7"]
    assert loader.plan(16, 2).per_stream == 2
    with pytest.raises(CheckpointUsageError, match="batch_size that is a multiple of 8"):
        loader.plan(12, 2)
    asked = counted(streams=4).build(dp_world_size=2, dp_rank=1, local_batch_size=2)
    with pytest.raises(CheckpointUsageError, match=r"positions of 8 streams .* asks for 4"):
        asked.needed_pieces(saved)


def check_a_rank_whose_streams_are_over_goes_on_with_what_does_not_count() -> None:
    loader = counted(last=101).build(dp_world_size=4, dp_rank=0, local_batch_size=1)
    loader.needed_pieces(["0", "1", "2", "3"])
    loader.take_pieces({"0": {"next": 101}})  # its end
    loader.plan(4, 1)
    inputs, labels = next(iter(loader))
    assert inputs["input"].tolist() == [[0, 0, 0]]
    assert (labels == IGNORE_INDEX).all()


def check_positions_that_nobody_asks_for_are_not_kept() -> None:
    loader = counted().build(dp_world_size=1, dp_rank=0, local_batch_size=4)
    loader.is_saved = False
    loader.plan(4, 4)
    for _ in zip(loader, range(5), strict=False):
        pass
    assert not loader._taken


def check_a_data_set_without_positions_or_samples() -> None:
    for kind, text in (("no state", "no state_dict and load_state_dict"), ("few", "too few")):
        loader = counted(kind=kind).build(dp_world_size=1, dp_rank=0, local_batch_size=1)
        loader.plan(4, 1)
        with pytest.raises(UsageError, match=text):
            next(iter(loader))


class OwnTrainer(Trainer):
    """Of a user's."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        own: int = 1


def mine() -> Trainer.Config:
    config = llama3_debugmodel()
    made = OwnTrainer.Config(**{f.name: getattr(config, f.name) for f in fields(config)})
    made.training.local_batch_size = 3
    return made


class Bare(BaseDataLoader):
    """Gives nothing."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __iter__(self) -> Any:
        return iter(())


class Counted(IterableDataset[Any]):
    """The numbers from 100 times the rank on, each as a sequence of three tokens."""

    def __init__(self, rank: int, *, real: bool, last: int) -> None:
        self._next, self._real, self._last = 100 * rank, real, last

    def __iter__(self) -> Any:
        while self._next < self._last:
            row = torch.full((3,), self._next)
            self._next += 1
            yield {"input": row}, row.float() if self._real else row

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class Plain(IterableDataset[Any]):
    """Has no position."""

    def __iter__(self) -> Any:
        return iter(())


class CountedLoader(ParallelAwareDataloader):
    """A loader of a user's."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        infinite: bool = True
        real: bool = False
        kind: str = ""
        last: int = 1000
        made: int = field(init=False, default=0)

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int
    ) -> None:
        data: Any = Counted(dp_rank, real=config.real, last=config.last)
        if config.kind == "no state":
            data = Plain()
        elif config.kind == "few":
            raise IndexError("out of range")
        size = {"batch_size": local_batch_size}
        super().__init__(data, dp_rank=dp_rank, dp_world_size=dp_world_size, **size)


def counted(*, streams: int | None = None, **fields_of_it: Any) -> Any:
    config = elastic_dataloader(CountedLoader.Config(**fields_of_it))
    config.streams = streams
    return config


def outcomes() -> dict[str, str]:
    """For each check what was wrong; "" for nothing."""
    found = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
            except BaseException:
                found[name] = traceback.format_exc()
            else:
                found[name] = ""
    return found


if __name__ == "__main__":
    sys.modules["config_checks"] = sys.modules["__main__"]
    print(json.dumps(outcomes()))
