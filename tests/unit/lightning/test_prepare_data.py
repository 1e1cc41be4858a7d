"""The workers of a node prepare their data one after the other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from lightning import LightningDataModule

from elastic_runtime.lightning.prepare_data import prepare_data_in_turn
from tests.unit.lightning.trainers import Line, trainer

if TYPE_CHECKING:
    from pathlib import Path


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
