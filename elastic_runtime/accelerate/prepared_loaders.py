"""What ``prepare`` makes of a loader: one for training, or one for anything else.

accelerate shares out the batches of a loader: every n-th one for each rank. A loader whose sampler
is ours gives each rank its share already. And what accelerate prepares is made for the ranks of one
world; here it is made again for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.state import GradientState
from accelerate.utils import send_to_device

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from elastic_runtime.data.sampler import ElasticBatchSampler


class TrainingLoader:
    """The shares of this rank, on its device.

    Like accelerate's own loaders it tells their ``GradientState`` that it is iterated over.

    Attributes:
        sampler: shares out the samples, and remembers how far the job is.
        weight: what the micro-batch that was given last counts in its step, see
            ``ElasticBatchSampler.share_of_step``.
        samples: how many it has on all ranks.
        ends_step: the optimizer steps after it.
        end_of_dataloader: it is the last one of the epoch.
        remainder: how many samples of it are there twice; none.
    """

    remainder = 0

    def __init__(
        self,
        loader: Any,
        sampler: ElasticBatchSampler,
        device: torch.device | None,
        *,
        non_blocking: bool = False,
    ) -> None:
        """Leaves the loader as it is.

        Args:
            loader: with this sampler.
            sampler: its own.
            device: where batches are to be; None: where they are.
            non_blocking: whether the script goes on while they are copied.
        """
        self._loader, self.sampler = loader, sampler
        self._device, self._non_blocking = device, non_blocking
        self.weight, self.samples = 1.0, 0
        self.ends_step = self.end_of_dataloader = False
        self._world = 0  # how often ranks have changed
        self._in_step = False  # further micro-batches of the step have to come

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        """Batches that are left in the epoch."""
        return len(self.sampler)

    @property
    def total_batch_size(self) -> int:
        """Samples of all ranks in a batch."""
        return self.sampler.batch_sizes[1]

    def set_epoch(self, epoch: int) -> None:
        """For loops that say it: the sampler knows the epoch."""

    def enter(self) -> None:
        """Other ranks are there from now on; a step that was broken off has left nothing."""
        self._world += 1
        self._in_step = False

    def __iter__(self) -> Iterator[Any]:
        """Begins where the last commit was; in another world it goes on there by itself.

        Raises:
            UsageError: a commit came too early, or did not come; or an earlier iteration was left
                in the middle of a step, whose gradients would count twice.
        """
        if self._in_step:
            raise UsageError(
                "an iteration over the training data was left before the last micro-batch of a "
                "step: its samples would come again, and their gradients count twice; leave the "
                "loop only after a step, if accelerator.sync_gradients"
            )
        gradients = GradientState()
        gradients._add_dataloader(self)
        try:
            while True:
                world = self._world
                yield from self._in_world(world)
                if world == self._world:
                    return
                gradients._remove_dataloader(self)  # accelerate has forgotten it, or will
                gradients._add_dataloader(self)
        finally:
            gradients._remove_dataloader(self)

    def _in_world(self, world: int) -> Iterator[Any]:
        """The batches from the last commit on, as long as the ranks are the same."""
        sampler = self.sampler
        left, commits, piece = len(sampler), sampler.commits, 0
        self.end_of_dataloader = False
        for number, batch in enumerate(self._loader, start=1):
            if number > 1:
                if self._world != world:
                    return
                committed = sampler.commits != commits
                self._check_commit(committed=committed)
                piece = 0 if committed else piece + 1
                commits = sampler.commits
            self.weight = sampler.share_of_step(piece)
            self.samples = sampler.samples_in_piece(piece)
            self.ends_step = piece + 1 == sampler.pieces_in_step
            self.end_of_dataloader = number == left
            self._in_step = not self.ends_step
            yield batch if self._device is None else self._placed(batch)

    def _placed(self, batch: Any) -> Any:
        return send_to_device(batch, self._device, non_blocking=self._non_blocking)

    def _check_commit(self, *, committed: bool) -> None:
        """A step is committed after the last one of its micro-batches, and only there."""
        if self.ends_step and not committed:
            raise UsageError(
                "the next batch was asked for, and the step before it is not committed; call "
                "state.commit() (or Checkpointer.step()) after each step of the optimizer"
            )
        if committed and not self.ends_step:
            raise UsageError(
                "a step was committed before all of its micro-batches had come (the sampler has a "
                "micro_batch_size); use accelerator.accumulate(model), and commit only "
                "if accelerator.sync_gradients"
            )


class OtherLoader:
    """A loader that nothing is trained from: accelerate shares it out, for each world anew."""

    def __init__(self, loader: Any, share_out: Callable[[Any], Any]) -> None:
        """Shares out nothing yet.

        Args:
            loader: the user's.
            share_out: makes accelerate's loader for the present ranks.
        """
        self._loader, self._share_out = loader, share_out
        self._shared: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_share_out", "_shared"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.of_rank(), name)

    def enter(self) -> None:
        """Other ranks are there from now on."""
        self._shared = None

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self.of_rank())

    def __iter__(self) -> Iterator[Any]:
        """Begins at the first one."""
        shared = self.of_rank()
        try:
            yield from shared
        finally:  # accelerate does so at the end only
            GradientState()._remove_dataloader(shared)

    def gives(self, loader: object) -> bool:
        """Whether this is what accelerate has made of it.

        Args:
            loader: that is iterated over.
        """
        return loader is not None and loader is self._shared

    def of_rank(self) -> Any:
        """What accelerate has made of it for the present ranks."""
        if self._shared is None:
            self._shared = self._share_out(self._loader)
        return self._shared
