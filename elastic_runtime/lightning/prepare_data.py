"""``prepare_data`` of all workers of a node, one after the other.

Lightning has one process prepare and the others wait at a barrier. Here no ranks are connected yet
when data are prepared, as a replacement does it while the others train. So each worker prepares
for itself, and finds what an earlier one has left; what the hook is for (downloads, unpacking)
does nothing then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden

from elastic_runtime.trainers.turns import turn

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def prepare_data_in_turn(trainer: Trainer, directory: str) -> None:
    """Has a trainer prepare its data so.

    Args:
        trainer: that.
        directory: of the job's checkpoints, which all nodes see: one lock for all of them is
            beside it, for data that are prepared once for all nodes.
    """

    def prepare() -> None:
        module, data = trainer.lightning_module, trainer.datamodule
        if data is not None and is_overridden("prepare_data", data):
            with turn(directory, everywhere=not data.prepare_data_per_node):
                call._call_lightning_datamodule_hook(trainer, "prepare_data")
        if is_overridden("prepare_data", module):
            with turn(directory, everywhere=not module.prepare_data_per_node):
                call._call_lightning_module_hook(trainer, "prepare_data")

    trainer._data_connector.prepare_data = prepare
