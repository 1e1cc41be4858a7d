"""What cannot be, in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning import ElasticCallback, ElasticStrategy
from elastic_runtime.lightning.in_place import _refuse_sharded
from tests.unit.lightning.trainers import Line, loader, trainer

if TYPE_CHECKING:
    from pathlib import Path


class Spread(torch.nn.Parameter):
    """As a DTensor looks from outside."""

    def full_tensor(self) -> torch.Tensor:
        return self.data


def test_a_model_that_is_spread_is_sent_to_the_callback() -> None:
    module = Line()
    module.net.weight = Spread(module.net.weight.data)
    loops: Any = SimpleNamespace(trainer=SimpleNamespace(lightning_module=module))
    with pytest.raises(UsageError, match=r"net.weight is spread.*ElasticCallback"):
        _refuse_sharded(loops)


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


def test_a_second_fit_in_a_process(tmp_path: Path) -> None:
    one = trainer(tmp_path, fast_dev_run=True)
    one.strategy.connect(Line())
    one.strategy.lightning_module.trainer = one
    one.state.fn = "fit"
    one.strategy.setup_environment()
    with pytest.raises(UsageError, match="one call of Trainer"):
        one.strategy.setup_environment()


def test_people_find_it_in_the_package_itself() -> None:
    assert elastic.ElasticStrategy is ElasticStrategy
