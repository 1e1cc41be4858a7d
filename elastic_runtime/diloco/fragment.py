"""One fragment of the parameters: what a rank has changed in it, and what becomes of that."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic_runtime.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.diloco.pairing import Pair


# Between two looks whether an exchange has arrived, in seconds: little beside what one takes. Who
# waits must hear of a leave meanwhile, and vote; no call of torch's waits for either.
_LOOK = 0.001


class NothingToAverage(ElasticError):
    """No rank has anything to contribute to a sync."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Parameters, and perhaps buffers, that are synchronized together.

    Attributes:
        parameters: the outer optimizer takes their mean change as its gradient.
        buffers: they take their mean.
        counts: buffers that are not real numbers, such as a count of batches: they take the largest
            value that a rank has.
    """

    parameters: Sequence[Pair]
    buffers: Sequence[Pair]
    counts: Sequence[Pair] = ()

    def change(self) -> torch.Tensor:
        """How much less this rank's own values are than the common ones, in a row, on the CPU.

        Returns:
            Of type float32, as long as all parameters and buffers together.
        """
        return torch.cat([_change(pair) for pair in (*self.parameters, *self.buffers)])

    def reached(self) -> torch.Tensor:
        """The values of the counts, in a row, on the CPU; of type int64."""
        rows = [pair.own.detach().to("cpu", torch.int64).reshape(-1) for pair in self.counts]
        return torch.cat([*rows, torch.zeros(0, dtype=torch.int64, device="cpu")])

    def offer(self, mean: torch.Tensor) -> None:
        """Gives the outer optimizer its gradients, and the common buffers their values.

        Args:
            mean: what ``change`` gives, averaged over the ranks.
        """
        pairs = (*self.parameters, *self.buffers)
        pieces = mean.split([_real(pair.common).numel() for pair in pairs])
        for number, (pair, piece) in enumerate(zip(pairs, pieces, strict=True)):
            change = torch.empty_like(pair.common, requires_grad=False)
            _real(change).copy_(piece.view(_real(change).shape))
            if number < len(self.parameters):
                pair.common.grad = change
            else:
                with torch.no_grad():
                    pair.common.sub_(change)

    def set_counts(self, furthest: torch.Tensor) -> None:
        """Gives the common counts their values.

        Args:
            furthest: the largest of what ``reached`` gives on each rank.
        """
        pieces = furthest.split([pair.common.numel() for pair in self.counts])
        with torch.no_grad():
            for pair, piece in zip(self.counts, pieces, strict=True):
                pair.common.copy_(piece.view(pair.common.shape))

    def drop_gradients(self) -> None:
        """The outer optimizer has used them."""
        for pair in self.parameters:
            pair.common.grad = None

    def adopt(self, mix: float = 0.0) -> None:
        """Takes the common values over into this rank's own.

        Args:
            mix: the share of its own that a parameter keeps.
        """
        with torch.no_grad():
            for number, pair in enumerate((*self.parameters, *self.buffers, *self.counts)):
                common = pair.common.to(pair.own.device, pair.own.dtype)
                if mix and number < len(self.parameters):
                    pair.own.lerp_(common, 1.0 - mix)
                else:
                    pair.own.copy_(common)


class Flight:
    """The exchange of a fragment, while it is under way.

    Attributes:
        finite: what this rank has sent counts.
        furthest: the largest counts of all ranks, after ``wait``.
    """

    def __init__(
        self,
        change: torch.Tensor,
        weight: float,
        group: dist.ProcessGroup | None,
        reached: torch.Tensor | None = None,
    ) -> None:
        """Sends this rank's change.

        Args:
            change: of a fragment.
            weight: what it counts beside those of others, not negative; 0 where it was not
                trained. It is taken for 0 if a value is not finite: one rank that has diverged must
                not spoil the others.
            group: all ranks, over gloo; None: this one is alone.
            reached: of a fragment; its counts go beside. None: it has none.
        """
        self.finite = bool(torch.isfinite(change).all())
        weight = weight if self.finite else 0.0
        # The weight travels with what it weighs, and so does whether there was anything to weigh.
        self._row = torch.zeros(len(change) + 2, device="cpu")
        self._row[-1] = float(not self.finite)
        if weight:
            self._row[-2] = weight
            torch.mul(change, weight, out=self._row[:-2])
        self.furthest = reached
        self._works: list[Any] = []
        if group is not None:
            self._works.append(dist.all_reduce(self._row, group=group, async_op=True))
            if reached is not None:
                most = dist.ReduceOp.MAX
                self._works.append(dist.all_reduce(reached, most, group=group, async_op=True))

    def wait(self, idle: Callable[[], None]) -> torch.Tensor:
        """The mean change of all ranks, the same on each.

        Args:
            idle: called now and then until it is there.

        Raises:
            NothingToAverage: no rank's change is finite.
            RuntimeError: a rank was lost on the way.
        """
        for work in self._works:
            while not work.is_completed():
                idle()
                time.sleep(_LOOK)
            work.wait()
        total, diverged = self._row[-2:].tolist()
        if not total and diverged:
            raise NothingToAverage(
                "the training has diverged: lower the inner learning rate, or clip gradients. On "
                "no rank that has trained since the last sync are all parameters finite, and so "
                "there is nothing to make an outer step of: the model is that of the last sync"
            )
        return self._row[:-2].div_(total or 1.0)


def _change(pair: Pair) -> torch.Tensor:
    with torch.no_grad():
        own = pair.own.to(pair.common.device)
        # What the replica began with: one of fewer bits must not take them from the common model.
        before = pair.common.to(own.dtype)
        # Where both are infinite, as in the mask of an attention, nothing has changed.
        change = torch.where(before == own, torch.zeros_like(own), before - own)
        return _real(change).float().reshape(-1).cpu()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as real numbers, which share its memory."""
    plain = tensor.detach()
    return torch.view_as_real(plain) if plain.is_complex() else plain
