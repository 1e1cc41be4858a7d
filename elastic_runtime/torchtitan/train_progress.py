"""How far a ``Trainer`` of torchtitan's is, as a part of the State."""

from __future__ import annotations

from typing import Any


class TrainProgress:
    """The steps, tokens and global batch of the last commit.

    torchtitan counts tokens on each rank by itself; here they are those of the job.
    """

    def __init__(self, trainer: Any) -> None:
        """Begins before the first step.

        Args:
            trainer: an ``ElasticTrainer``.
        """
        self._trainer = trainer
        self.step = 0
        self.tokens = 0

    def commit(self) -> None:
        """The step that the trainer is in is complete."""
        trainer = self._trainer
        self.step = trainer.step
        self.tokens += trainer.global_batch * trainer.config.training.seq_len
        trainer.ntokens_seen = self._of_rank()

    def begin_at(self, step: int, tokens: int) -> None:
        """Goes on from what torchtitan's own manager has loaded.

        Args:
            step: steps that were made.
            tokens: of this rank.
        """
        self.step, self.tokens = step, tokens * self._ranks()

    def state_dict(self) -> dict[str, Any]:
        """The same on all ranks."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "global_batch": self._trainer.global_batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts the trainer there.

        Raises:
            UsageError: the data cannot be shared out as they were.
        """
        self.step, self.tokens = state["step"], state["tokens"]
        self._trainer.step, self._trainer.ntokens_seen = self.step, self._of_rank()
        self._trainer.go_on(state["global_batch"])

    def _of_rank(self) -> int:
        return self.tokens // self._ranks()

    def _ranks(self) -> int:
        """Over how many ranks torchtitan adds tokens up."""
        mesh = self._trainer.parallel_dims.get_optional_mesh("loss")
        return 1 if mesh is None else int(mesh.size())
