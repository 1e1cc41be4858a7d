"""One fragment of the parameters: what a rank has changed in it, and what becomes of that."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from elastic_runtime.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.diloco.pairing import Pair


# Between two looks whether an exchange has arrived, in seconds: little beside what one takes.
_LOOK = 0.001


class NothingToAverage(ElasticError):
    """No rank has anything to contribute to a sync."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Parameters, and perhaps buffers, that are synchronized together.

    Attributes:
        parameters: the outer optimizer takes their mean change as its gradient.
        buffers: they take their mean.
    """

    parameters: Sequence[Pair]
    buffers: Sequence[Pair]

    def change(self) -> torch.Tensor:
        """How much less this rank's own values are than the common ones, in a row, on the CPU.

        Returns:
            Of type float32, as long as all parameters and buffers together.
        """
        with torch.no_grad():
            rows = [
                _real(pair.common - pair.own.to(pair.common.device)).float().reshape(-1).cpu()
                for pair in (*self.parameters, *self.buffers)
            ]
            return torch.cat(rows)

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
            for number, pair in enumerate((*self.parameters, *self.buffers)):
                common = pair.common.to(pair.own.device, pair.own.dtype)
                if mix and number < len(self.parameters):
                    pair.own.lerp_(common, 1.0 - mix)
                else:
                    pair.own.copy_(common)


class Flight:
    """The exchange of a fragment, while it is under way."""

    def __init__(
        self, change: torch.Tensor, weight: float, group: dist.ProcessGroup | None
    ) -> None:
        """Sends this rank's change.

        Args:
            change: of a fragment.
            weight: what it counts beside those of others, not negative; 0 where it was not
                trained. It is taken for 0 if a value is not finite: one rank that has diverged must
                not spoil the others.
            group: all ranks, over gloo; None: this one is alone.
        """
        self.finite = bool(torch.isfinite(change).all())
        weight = weight if self.finite else 0.0
        # The weight travels with what it weighs, and so does whether there was anything to weigh.
        self._row = torch.zeros(len(change) + 2, device="cpu")
        self._row[-1] = float(not self.finite)
        if weight:
            self._row[-2] = weight
            torch.mul(change, weight, out=self._row[:-2])
        self._work = dist.all_reduce(self._row, group=group, async_op=True) if group else None

    def wait(self, idle: Callable[[], None]) -> torch.Tensor:
        """The mean change of all ranks, the same on each.

        Args:
            idle: called now and then until it is there.

        Raises:
            NothingToAverage: no rank's change is finite.
            RuntimeError: a rank was lost on the way.
        """
        if self._work is not None:
            while not self._work.is_completed():
                idle()
                time.sleep(_LOOK)
            self._work.wait()
        total, diverged = self._row[-2:].tolist()
        if not total and diverged:
            raise NothingToAverage(
                "the training has diverged: lower the inner learning rate, or clip gradients. On "
                "no rank that has trained since the last sync are all parameters finite, and so "
                "there is nothing to make an outer step of: the model is that of the last sync"
            )
        return self._row[:-2].div_(total or 1.0)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as real numbers, which share its memory."""
    plain = tensor.detach()
    return torch.view_as_real(plain) if plain.is_complex() else plain
