"""What a strategy brings with it: ranks of the moment, data prepared in turn, and refusals."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning import LightningDataModule

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning import ElasticCallback, ElasticStrategy
from elastic_runtime.lightning.elastic_environment import ElasticEnvironment
from elastic_runtime.lightning.fit_job import _refuse_sharded
from elastic_runtime.lightning.prepare_data import prepare_data_in_turn
from elastic_runtime.training import run_loop
from tests.unit.lightning.trainers import Line, connected, loader, trainer

if TYPE_CHECKING:
    from pathlib import Path


def test_ranks_are_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ElasticEnvironment()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (found.global_rank(), found.world_size()) == (1, 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (found.global_rank(), found.world_size()) == (0, 2)
    found.validate_settings(8, 16)


def test_without_a_launcher_it_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = ElasticEnvironment()
    ranks = (found.global_rank(), found.world_size(), found.local_rank(), found.node_rank())
    assert ranks == (0, 1, 0, 0)
    assert found.main_address == "127.0.0.1"
    assert found.main_port == found.main_port > 0


class Slow(LightningDataModule):
    """Says when it prepares."""

    def __init__(self, per_node: bool) -> None:
        super().__init__()
        self.prepare_data_per_node = per_node
        self.inside, self.most, self.times = 0, 0, 0
        self.released = threading.Event()

    def prepare_data(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.times += 1
        self.released.wait(0.05)
        self.inside -= 1


@pytest.mark.parametrize("per_node", [True, False])
def test_one_at_a_time_and_each_of_them(tmp_path: Path, per_node: bool) -> None:
    data = Slow(per_node)
    made = trainer(tmp_path)
    made.strategy.connect(Line())
    made.datamodule = data
    prepare_data_in_turn(made, str(tmp_path / "job"))
    threads = [threading.Thread(target=made._data_connector.prepare_data) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (data.times, data.most) == (3, 1)
    assert (tmp_path / "job.prepare-lock").exists() is not per_node


class Spread(torch.nn.Parameter):
    """As a DTensor looks from outside."""

    def full_tensor(self) -> torch.Tensor:
        return self.data


def test_a_model_that_is_spread_is_sent_to_the_callback() -> None:
    module = Line()
    module.net.weight = Spread(module.net.weight.data)
    with pytest.raises(UsageError, match=r"net.weight is spread.*ElasticCallback"):
        _refuse_sharded(module)


def test_a_misspelt_option_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"no evry=; did you mean every=\?"):
        ElasticStrategy("runs/x", evry="30s")
    ElasticStrategy("runs/x", find_unused_parameters=True, static_graph=False)


@pytest.mark.parametrize("made", [ElasticStrategy, ElasticCallback])
def test_times_and_batches_are_checked_at_once(made: Any) -> None:
    with pytest.raises(UsageError, match="thirty"):
        made("runs/x", every="thirty")
    with pytest.raises(UsageError, match="at least one sample"):
        made("runs/x", global_batch=0)


def test_strategy_and_callback_together(tmp_path: Path) -> None:
    both = trainer(tmp_path, callbacks=[ElasticCallback(tmp_path / "job")])
    with pytest.raises(UsageError, match="leave the callback out"):
        both.fit(Line(), loader())


class ByHand(Line):
    """Steps its optimizer itself."""

    def __init__(self, *, weighs: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.weighs = False, weighs

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        if self.weighs:
            self.manual_backward(loss)
        else:
            loss.backward()
        self.optimizers().step()


@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
@pytest.mark.parametrize("weighs", [True, False])
def test_gradients_of_a_modules_own_are_weighed_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighs: bool
) -> None:
    monkeypatch.setattr(run_loop, "_ran", False)
    made = trainer(tmp_path, max_epochs=1)
    told = pytest.raises(UsageError, match=r"without self\.manual_backward") if not weighs else None
    with told or contextlib.nullcontext():
        made.fit(ByHand(weighs=weighs), loader())
    assert made.global_step == (5 if weighs else 1)


def test_a_second_fit_in_a_process(tmp_path: Path) -> None:
    one = connected(tmp_path, fast_dev_run=True)
    one.state.fn = "fit"
    one.strategy.setup_environment()
    with pytest.raises(UsageError, match="one call of Trainer"):
        one.strategy.setup_environment()


def test_people_find_it_in_the_package_itself() -> None:
    assert elastic.ElasticStrategy is ElasticStrategy
