"""What a ``State`` and the loaders in it tell each other.

A loader gives steps; the State says which of them are committed, and when training is over. Neither
needs to know how the other does it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from elastic_runtime.worker.world import FollowsWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.amp import GradScaler


class JobProgress(Protocol):
    """How far a job is, as its State tells a loader.

    Attributes:
        step: how many steps are committed.
        stopped: training is over, on all ranks, whatever bound a loop has.
        call: which call of ``train`` this is; another one in each world.
        is_entrusted: each rank trains a model of its own between two commits.
        needs_two: a model cannot be trained with one sample alone.
        scalers: of the State, which are in use.
    """

    @property
    def step(self) -> int: ...

    @property
    def stopped(self) -> bool: ...

    @property
    def call(self) -> int: ...

    @property
    def is_entrusted(self) -> bool: ...

    @property
    def needs_two(self) -> bool: ...

    @property
    def scalers(self) -> list[GradScaler]: ...

    def end_training(self) -> None:
        """Leaves ``train``, as training is over, and the loop asks for more steps again."""


class StepSource(FollowsWorld):
    """A loader that gives the steps of a job, as its State sees it.

    Attributes:
        epoch: the epoch that the next step belongs to.
        iterates: the script is in the middle of its ``steps()``.
        has_begun: it has given steps since the last commit.
    """

    epoch: int
    iterates: bool
    has_begun: bool

    def belong_to(self, progress: JobProgress) -> None:
        """It is part of this State, which counts its steps."""
        raise NotImplementedError

    def before_optimizer(self) -> None:
        """An optimizer of the State is about to make its step.

        Raises:
            UsageError: pieces of the step that is under way are still to come.
        """
        raise NotImplementedError

    def before_commit(self, *, optimized: bool) -> None:
        """All steps that were begun since the last commit are about to be committed.

        Args:
            optimized: an optimizer of the State has made a step since.

        Raises:
            UsageError: the gradients of a step were not weighed.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Moves on past the steps that were begun since the last commit; they count."""
        raise NotImplementedError


_training = False


def is_training() -> bool:
    """Whether a State is trained in this process now, and nothing beside it is done."""
    return _training


@contextmanager
def training(*, on: bool) -> Iterator[None]:
    """Within the block one is, or is not, as in an evaluation."""
    global _training
    before, _training = _training, on
    try:
        yield
    finally:
        _training = before
