"""Runs a ``Trainer``'s loops in place: survivors of a fault go on where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.lightning.trainer_parts import needs_shadow

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.lightning.elastic_strategy import ElasticStrategy
    from elastic_runtime.lightning.trainer_parts import ElasticLoops
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.world import World


class InPlaceRecovery:
    """A ``Recovery`` by ``elastic.run``."""

    def __init__(self, loops: ElasticLoops, strategy: ElasticStrategy) -> None:
        """Remembers what it is about.

        Args:
            loops: those to run.
            strategy: of their trainer.
        """
        self._loops = loops
        self._strategy = strategy
        self._state: State | None = None
        self._saver: Checkpointer | None = None

    def run(self, fit: Callable[[], None]) -> None:
        """Calls ``fit`` in one world after the other.

        Raises:
            UsageError: the model is spread over ranks, or a part of the job cannot be kept.
        """
        loops, strategy = self._loops, self._strategy
        _refuse_sharded(loops)
        parts = loops.parts()
        shadow = loops.settings.shadow
        if shadow is None:
            shadow = needs_shadow(strategy.lightning_module, strategy.optimizers)
        state = self._state = elastic.State(shadow=shadow, **parts)
        if not loops.trainer.fast_dev_run:  # else nothing is to stay
            self._saver = loops.checkpointer(parts)

        def train(world: World) -> None:
            strategy.enter(world)
            try:
                loops.observations.enter(state.step)
                loops.reports.hand_over(to_this=world.rank == 0)
                loops.tell_batch()
                fit()
            finally:
                strategy.leave()

        elastic.run(train, state, self._saver, start_over=loops.settings.start_over)

    def commit(self) -> None:
        """Commits a step; the round may end here.

        Raises:
            WorldChanged: it does.
        """
        assert self._state is not None
        self._loops.observations.note(self._state.step + 1)
        self._state.commit()

    def save(self) -> None:
        """Saves the last step."""
        if self._saver is not None:
            self._saver.save()


def _refuse_sharded(loops: ElasticLoops) -> None:
    """Refuses a model of which each rank has a part, with a word that helps under Lightning."""
    for name, parameter in loops.trainer.lightning_module.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise UsageError(
                f"{name} is spread over ranks (FSDP2, tensor parallel), and such models do not go "
                "on in place yet; train with Trainer(strategy=ModelParallelStrategy(), "
                'callbacks=[ElasticCallback("dir")]), which restarts from checkpoints that any '
                "number of ranks can load"
            )
