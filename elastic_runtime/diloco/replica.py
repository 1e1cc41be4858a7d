"""What a rank trains alone, and how it becomes part of the common model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from elastic_runtime.diloco.fragment import Flight, Fragment
from elastic_runtime.diloco.rhythm import cut
from elastic_runtime.parts.optimizer_part import OptimizerPart, ParameterNames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

    from elastic_runtime.diloco.pairing import Pairing


class Replica:
    """A rank's own model, beside the common one.

    Attributes:
        module: the model.
        inner: the optimizer that trains it.
    """

    def __init__(
        self,
        pairing: Pairing,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer,
        fragments: int,
        mix: float,
    ) -> None:
        """Takes the models as they are; nothing is copied before ``begin``.

        Args:
            pairing: of its tensors with those of the common model.
            inner: trains it.
            outer: makes steps of the common model.
            fragments: into how many parts the parameters are cut.
            mix: the share of its own value that a parameter keeps when it takes the common one.
        """
        parameters = pairing.parameters
        pieces = cut([pair.own.numel() for pair in parameters], fragments)
        self._fragments = [
            Fragment([parameters[n] for n in piece], *buffers)
            # Buffers come with the last one.
            for piece, buffers in zip(
                pieces,
                [*[([], [])] * (fragments - 1), (pairing.floats, pairing.others)],
                strict=True,
            )
        ]
        self.module = pairing.replica
        names = ParameterNames({"replica": pairing.replica})
        self.inner = OptimizerPart("inner", inner, names)
        self.inner.keep(shadow=False)
        self._pairing, self._outer, self._mix = pairing, outer, mix
        self._work = [0] * fragments  # own inner steps since each fragment's last sync
        self._flights: dict[int, Flight] = {}

    def stepped(self) -> None:
        """One more inner step was made."""
        self._work = [own + 1 for own in self._work]

    def begin(self) -> None:
        """Takes over the common model."""
        for fragment in self._fragments:
            fragment.adopt()
        with torch.no_grad():
            for pair in self._pairing.still:
                pair.own.copy_(pair.common)
        self._work = [0] * len(self._fragments)

    def send(self, turn: int, age: int, group: dist.ProcessGroup | None) -> None:
        """Begins the exchange of a fragment, unless it is under way.

        Args:
            turn: which.
            age: inner steps since its last sync, for a rank that was there all the time. One that
                was not has changed less, for fewer steps, and counts less.
            group: all ranks.
        """
        if turn not in self._flights:
            weight = self._work[turn] / max(1, age)
            fragment = self._fragments[turn]
            reached = fragment.reached() if fragment.counts else None
            self._flights[turn] = Flight(fragment.change(), weight, group, reached)

    def land(self, turns: Sequence[int], idle: Callable[[], None]) -> bool:
        """Waits for exchanges that were begun, and makes an outer step of them.

        Args:
            turns: of which fragments.
            idle: called now and then while it waits.

        Returns:
            Whether what this rank has trained counts. If not, it is not finite, and the common
            model has taken its place.

        Raises:
            NothingToAverage: no rank's change is finite.
            RuntimeError: a rank was lost on the way.
        """
        flights = [self._flights[turn] for turn in turns]
        means = [flight.wait(idle) for flight in flights]
        self._flights = {}
        for turn, flight, mean in zip(turns, flights, means, strict=True):
            self._fragments[turn].offer(mean)
            if flight.furthest is not None:
                self._fragments[turn].set_counts(flight.furthest)
        self._outer.step()
        for turn in turns:
            self._fragments[turn].drop_gradients()
        finite = all(flight.finite for flight in flights)
        if not finite:
            self.begin()
            self.inner.optimizer.state.clear()
        return finite

    def adopt(self, turns: Sequence[int]) -> None:
        """Takes over fragments of the common model after a sync of them."""
        for turn in turns:
            self._fragments[turn].adopt(self._mix)
            self._work[turn] = 0

    def forget_step(self) -> None:
        """The world has changed: what is under way will not arrive, nor what a step has begun."""
        self._flights = {}
        for parameter in self.module.parameters():
            parameter.grad = None  # else it would be added to that of the next step
