"""How far a job is, as one entry of its State and of its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from transformers import Trainer

    from elastic_runtime.transformers.steps.train_batches import TrainBatches


class Progress:
    """Counts the steps of a ``Trainer``; the same on all ranks.

    Attributes:
        owes: what follows the newest step (logs, an evaluation, a save) is not done yet.
    """

    def __init__(self, trainer: Trainer, data: TrainBatches, frozen: str) -> None:
        """Begins where the trainer is.

        Args:
            trainer: whose ``state`` counts the steps, too.
            data: whose batch is the job's.
            frozen: a fingerprint of parameters that are not kept, "" if all are.
        """
        self._trainer = trainer
        self._data = data
        self._frozen = frozen
        self._step = int(trainer.state.global_step)
        self.owes = False

    @property
    def step(self) -> int:
        """How many steps are complete."""
        return self._step

    def commit(self) -> None:
        """A step is complete, and what follows it is owed."""
        self._step += 1
        self._trainer.state.global_step = self._step
        self.owes = True

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "step": self._step,
            "owes": self.owes,
            "global_batch": self._data.global_batch,
            "max_steps": self._trainer.state.max_steps,
            "frozen": self._frozen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            UsageError: this process trains something else.
        """
        batch = self._data.global_batch
        if state["global_batch"] != batch:
            raise UsageError(
                f"the job has steps of {state['global_batch']} samples, and this process computed "
                f"its schedule with {batch}; give ElasticOptions(global_batch="
                f"{state['global_batch']}), or another directory for another job"
            )
        if state["frozen"] != self._frozen:
            raise UsageError(
                "the frozen parameters here are not those that the job was trained with, which "
                "are not part of its state: load the same base model in all processes; one that is "
                "made anew needs a seed before it, such as transformers.set_seed(1)"
            )
        self._step = self._trainer.state.global_step = state["step"]
        self.owes = state["owes"]
