"""Steps of a job: the pieces of a global batch that this rank computes, and what each counts.

A step is one global batch of the whole job. Each rank takes a share of it, in as many pieces as
all others, so that what happens in each piece (a normalization over all ranks, a reduction) happens
on all of them. What a piece counts follows from its samples: with these weights the gradient is the
mean over the global batch, in any world.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import StepPieces
from elastic_runtime.worker import step_source
from elastic_runtime.worker.context import context
from elastic_runtime.worker.loop_hints import (
    BREAK_IN_PIECES,
    LOOPS_IN_A_ROW,
    LOOSE_LOADER,
    STEPS_TOGETHER,
    tell_once,
)
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.pieces import begin_piece
from elastic_runtime.worker.step_source import StepSource

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.step_source import JobProgress


class TrainingStep:
    """One step: iterating over it gives the pieces of this rank, once.

    Attributes:
        number: what ``state.step`` will be when it is committed; the first one is 1.
        epoch: which it belongs to, from 0.
        last_of_epoch: no step of that epoch follows.
        samples: in the global batch.
        pieces: how many there are, the same on all ranks.
    """

    def __init__(
        self,
        source: GivesSteps,
        batches: Iterator[Any],
        own: list[int],
        *,
        number: int,
        epoch: int,
        last_of_epoch: bool,
        samples: int,
        world: int,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: gives it.
            batches: its pieces, and those of the steps after it.
            own: how many samples of each piece count for this rank.
            number, epoch, last_of_epoch, samples: see above.
            world: how many ranks there are.
        """
        self.number = number
        self.epoch = epoch
        self.last_of_epoch = last_of_epoch
        self.samples = samples
        self.pieces = len(own)
        self.taken = 0  # pieces that the script has got
        self._weighed: set[int] = set()  # pieces whose weight was asked for
        self._source, self._batches, self._own, self._world = source, batches, own, world
        self._walk = source._walk
        self._ahead: list[Any] = []  # read by ``total``
        self._iterated = False
        self._over = False  # the loop has gone on
        self._lost: Any = 0.0  # the losses so far, each with its factor

    def __repr__(self) -> str:
        """Its number, and how many samples it has."""
        return f"TrainingStep({self.number}: {self.samples} samples, epoch {self.epoch})"

    def __iter__(self) -> Iterator[Any]:
        """The pieces of this rank, each a batch as the loader makes it.

        Raises:
            UsageError: they were given already.
        """
        if self._iterated:
            raise UsageError(
                f"the pieces of step {self.number} were given already; keep what you need of them"
            )
        self._iterated = True
        return self._pieces()

    def _pieces(self) -> Iterator[Any]:
        try:
            while self.taken < self.pieces:
                piece = self._ahead.pop(0) if self._ahead else self._read()
                self.taken += 1
                begin_piece(is_last=self.taken == self.pieces)
                yield piece
        finally:  # also where the script breaks out of it
            begin_piece(is_last=True)

    def _read(self) -> Any:
        if self._over or self._source._walk is not self._walk:
            raise UsageError(
                f"step {self.number} is over: the loop has gone on, or was begun anew, and what "
                "comes now belongs to another step; take the pieces of a step before the next one"
            )
        return next(self._batches)

    @property
    def weight(self) -> float:
        """What to multiply the mean loss of the present piece with, before ``backward``.

        ``DistributedDataParallel`` averages over ranks, and gradients of pieces add up: with this
        weight the result is the mean over the global batch, however it is shared out.

        Raises:
            UsageError: no piece was taken yet.
        """
        present = self._present()
        self._weighed.add(present)
        return self._factor(present)

    @property
    def weights(self) -> list[float]:
        """What ``weight`` is for each piece, for loops that take them all before the first one."""
        self.count_as_weighed()
        return [self._factor(piece) for piece in range(self.pieces)]

    @property
    def unweighed(self) -> list[int]:
        """Which of the pieces that were taken, from 0, nobody has asked for a weight."""
        return [piece for piece in range(self.taken) if piece not in self._weighed]

    def count_as_weighed(self) -> None:
        """For loops that see by themselves to what the pieces count."""
        self._weighed.update(range(self.pieces))

    def _factor(self, piece: int) -> float:
        return self._own[piece] * self._world / self.samples

    def backward(self, loss: torch.Tensor, reduction: str = "mean") -> None:
        """Computes gradients of the present piece, so that it counts as much as it has samples.

        Args:
            loss: one number: the mean over the piece. What a ``GradScaler`` has scaled is as good.
            reduction: ``"mean"``; ``"sum"`` for a sum over the piece that the script has divided by
                what all pieces on all ranks have together (see ``total``), such as tokens.

        Raises:
            UsageError: it is no single number, no piece was taken, or the word is another one.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            kind = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
            raise UsageError(
                f"step.backward() needs the loss of a piece as one number, not {kind}; take its "
                "mean, or its sum with reduction='sum'"
            )
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction={reduction!r} is not understood; give 'mean' or 'sum'")
        factor = self.weight
        if reduction == "sum":
            ranks = 1.0 if self._source.trains_alone else float(self._world)
            factor = ranks if self._own[self._present()] else 0.0
        lost = loss * factor
        self._lost = self._lost + self._source.unscaled(lost.detach())
        lost.backward()

    def mean_loss(self) -> float:
        """The mean over the global batch of what ``backward`` was given; all ranks must ask.

        It waits for all of them, so it belongs before the optimizer. Of losses that were given as
        sums it is the sum. What the State's ``GradScaler`` has scaled counts as it was before.

        Example::

            loss = step.mean_loss()
            if world.rank == 0:
                print(step.number, loss)
            optim.step()

        Raises:
            UsageError: pieces of the step are still to come; or several scalers are in use.
        """
        if len(self._source.scalers()) > 1:
            raise UsageError(
                "step.mean_loss() cannot tell which of several GradScalers has scaled a loss: add "
                "up the losses of the pieces, each times step.weight, and reduce them over ranks"
            )
        if self._weighed and not isinstance(self._lost, torch.Tensor):
            raise UsageError(
                "step.mean_loss() is of what step.backward(loss) was given, and it was given "
                "nothing: call that instead of (loss * step.weight).backward()"
            )
        if self.taken < self.pieces:
            raise UsageError("step.mean_loss() is of all pieces: ask for it after the last one")
        own = float(self._lost)
        if self._source.trains_alone:
            return own
        return self._over_shares(own, "mean_loss") / self._world

    def total(self, count: Callable[[Any], float]) -> float:
        """The sum of a number over all pieces of the step, on all ranks; all of them must ask.

        Under ``DiLoCo`` and ``LocalSGD``, where ranks do not meet in a step, it is over the pieces
        of this rank.

        Example::

            tokens = step.total(lambda piece: (piece["labels"] != -100).sum())
            for piece in step:
                loss = cross_entropy(ddp(piece), piece["labels"], reduction="sum")
                step.backward(loss / tokens, reduction="sum")

        It reads all pieces of this rank at once.

        Args:
            count: called with each piece that counts for this rank; gives a number.

        Raises:
            UsageError: a piece was taken already.
        """
        if self._iterated:
            raise UsageError("step.total() reads the pieces ahead: call it before the first one")
        while len(self._ahead) < self.pieces:
            self._ahead.append(self._read())
        found = [count(piece) for piece, own in zip(self._ahead, self._own, strict=True) if own]
        own_total: float = sum(map(_number, found))
        if self._source.trains_alone:
            return own_total
        return self._over_shares(own_total, "total")

    def _over_shares(self, number: float, asked: str) -> float:
        """The sum over all shares: under tensor parallelism several ranks have the same one."""
        share = [self._source.place[0], number]
        shares = self._source.peers().gather(share, f"step.{asked}() of step {self.number}")
        return sum(dict(shares).values())

    def drop_rest(self) -> None:
        """Reads what the script has left of it: the next step begins after it."""
        if 0 < self.taken < self.pieces:
            tell_once(BREAK_IN_PIECES, taken=self.taken, pieces=self.pieces)
        for _ in range(self.pieces - self.taken - len(self._ahead)):
            next(self._batches)
        self._ahead.clear()
        self._over = True

    def _present(self) -> int:
        if not self.taken:
            raise UsageError(
                f"no piece of step {self.number} was taken: iterate over the step, and call "
                "step.backward(loss) for each piece"
            )
        return self.taken - 1


def refuse_fixed_place(place: tuple[int, int]) -> None:
    """Refuses shares of one world in a form in which the world changes.

    Args:
        place: the rank and the number of ranks that the script has named.

    Raises:
        UsageError: it is in place.
    """
    if context().in_place:
        raise UsageError(
            f"rank={place[0]}, world={place[1]} are of one world, and in place the world changes: "
            "leave them out, or write elastic.run(train, state, in_place=False)"
        )


def whole_number(name: str, value: Any, least: int, of: str = "") -> int:
    """The value of an argument.

    Args:
        name: of the argument.
        value: as the script has given it.
        least: the smallest that makes sense.
        of: what it counts, with a space before it.

    Raises:
        UsageError: it is no whole number, or too small a one.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number{of}, at least {least}")
    return operator.index(value)


def _number(value: Any) -> float:
    """What JSON has a word for: an int, else a float."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


class GivesSteps(StepSource):
    """What loaders have in common that give the steps of a job."""

    iterates = False
    tells_pieces = True  # people, of how steps are cut
    _progress: JobProgress | None = None
    _gloo: GlooGroups | None = None
    _own_peers: Peers | None = None
    _begun: tuple[TrainingStep, ...] = ()  # since the last commit
    _walk: object = None  # the present iteration
    _asked: tuple[int, tuple[int | None, int | None]] | None = None
    _was_over: int | None = None  # the call of ``train`` in which it had nothing more to give
    _empty: int | None = None  # the call of ``train`` in which a bound was behind it at once
    _told: StepPieces | None = None  # to people, of how steps are cut
    _made = 0  # steps in this iteration; in no State they are its numbers

    def steps(
        self, *, epochs: int | None = None, steps: int | None = None
    ) -> Iterator[TrainingStep]:
        """The steps that are left, from the last commit on, over the ends of epochs.

        Both bounds are about the whole training, over all restarts: ``epochs=10`` means until ten
        epochs are over, ``steps=1000`` until the job has made a thousand steps. Without any it goes
        on for ever.

        Args:
            epochs: how many epochs to train.
            steps: how many steps to make.

        Raises:
            UsageError: a bound is no whole number; or it was asked for the same bound before, in
                this call of ``train``.
        """
        for name, bound in (("epochs", epochs), ("steps", steps)):
            whole = isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0
            if bound is not None and not whole:
                raise UsageError(f"steps({name}={bound!r}): give a whole number from 0 on")
        self._refuse_again((epochs, steps))
        return self._steps(epochs, steps)

    def __iter__(self) -> Iterator[Any]:
        """This rank's share of the data, once and in order; for a validation.

        No sample comes twice on any rank, so ranks may get another number of batches.

        Raises:
            UsageError: it is in a State.
        """
        if self._progress is not None:
            raise UsageError(
                "this loader is in a State, and gives the steps of the job: iterate over "
                "loader.steps(epochs=...), and over the pieces of each step"
            )
        self.forget_walk()  # steps() would find other samples than its own
        return self._own_share()

    def _refuse_again(self, bounds: tuple[int | None, int | None]) -> None:
        progress = self._progress
        if progress is None:
            return
        if progress.stopped and self._was_over == progress.call:
            progress.end_training()  # a loop around it would never end
        if any(one is not None for one in bounds) and self._asked == (progress.call, bounds):
            given = f"epochs={bounds[0]}" if bounds[0] is not None else f"steps={bounds[1]}"
            raise UsageError(
                f"steps({given}) was asked for twice, and says where training ends, not how much "
                "is to come: call it once, and put what is to be done after each epoch into "
                "state.at('epoch', ...)"
            )
        self._asked = progress.call, bounds

    def _steps(self, epochs: int | None, steps: int | None) -> Generator[TrainingStep, None, None]:
        walk = self._walk = object()
        self._begun, self.iterates = (), True
        if self._progress is None:
            self._own_peers = None  # perhaps of a world that is over
            if step_source.is_training():
                tell_once(LOOSE_LOADER)
        self._go_to_commit()
        begin_piece(is_last=True)
        self._made = 0
        call = self._progress.call if self._progress is not None else None
        if self._is_over(epochs, steps):
            self._empty = call
        elif call is not None and self._empty == call:
            tell_once(LOOPS_IN_A_ROW)
        try:
            while not self._is_over(epochs, steps):
                for step in self._rest_of_epoch():
                    self._begun = (*self._begun, step)
                    if step.number == 1 or step.samples == self.global_batch_size:
                        self._tell_pieces(step)
                    yield step
                    if self._walk is not walk:
                        raise UsageError(
                            "this iteration over steps() was begun before another one, or before a "
                            "position was loaded; ask for steps() anew"
                        )
                    step.drop_rest()
                    if self._progress is None:
                        self._made = step.number
                        self.commit()  # as nobody else does
                    if self._is_over(None, steps):
                        return
            if self._progress is not None:
                self._was_over = self._progress.call
        finally:
            if self._walk is walk:
                self.iterates = False
                begin_piece(is_last=True)

    def _is_over(self, epochs: int | None, steps: int | None) -> bool:
        if self._progress is not None and self._progress.stopped:
            self._was_over = self._progress.call
            return True
        return (epochs is not None and self._next_epoch() >= epochs) or (
            steps is not None and self._number() > steps
        )

    def _number(self) -> int:
        """Of the step that is about to begin."""
        before = self._progress.step if self._progress is not None else self._made
        return before + len(self._begun) + 1

    def _tell_pieces(self, step: TrainingStep) -> None:
        """Tells people how a step is cut, where that has changed."""
        largest = -(-step.samples // step._world)
        told = StepPieces(step.samples, step._world, -(-largest // step.pieces), step.pieces)
        if self.tells_pieces and self._told != told:
            self._told = told
            if context().rank == 0:
                context().note(told)

    # What a loader does

    @property
    @abstractmethod
    def global_batch_size(self) -> int:
        """Samples in a step, over all ranks; the last one of an epoch may have fewer."""

    @property
    @abstractmethod
    def place(self) -> tuple[int, int]:
        """Whose shares these are, and of how many."""

    @abstractmethod
    def _go_to_commit(self) -> None:
        """The next step that is read is the first that is not committed."""

    @abstractmethod
    def _next_epoch(self) -> int:
        """Of the next step that is read."""

    @abstractmethod
    def _rest_of_epoch(self) -> Iterator[TrainingStep]:
        """Reads on to the end of the epoch."""

    @abstractmethod
    def _own_share(self) -> Iterator[Any]:
        """Batches of what this rank is to validate with."""

    # What a State calls

    def belong_to(self, progress: JobProgress) -> None:
        """See ``StepSource``."""
        self._progress = progress

    def use_groups(self, gloo: GlooGroups) -> None:
        """Uses these groups in the world that was entered; ``elastic.run`` calls it.

        Args:
            gloo: of all ranks.
        """
        self._gloo = gloo
        self._own_peers = None

    @property
    def trains_alone(self) -> bool:
        """Whether each rank trains a model of its own with its share (``DiLoCo``)."""
        return self._progress is not None and self._progress.is_entrusted

    def scalers(self) -> list[torch.amp.GradScaler]:
        """Those of the State that are in use."""
        return self._progress.scalers if self._progress is not None else []

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss as it was before the State's scaler; without waiting for a device.

        Args:
            loss: as ``backward`` has got it, scaled if there is a scaler in use.
        """
        for scaler in self.scalers():
            loss = loss / scaler.scale(torch.ones_like(loss))
        return loss

    def peers(self) -> Peers:
        """All ranks, for what they tell each other of a step."""
        if self._own_peers is None:
            self._own_peers = Peers(self._gloo.group if self._gloo is not None else None)
        return self._own_peers

    def before_optimizer(self) -> None:
        """See ``StepSource``."""
        step = self._begun[-1] if self._begun else None
        if step is not None and 0 < step.taken < step.pieces:
            raise UsageError(
                f"an optimizer makes its step after piece {step.taken} of {step.pieces} of step "
                f"{step.number}: put it after the loop over the pieces, for step in steps: for "
                "piece in step: ..., then optim.step()"
            )

    def before_commit(self, *, optimized: bool) -> None:
        """See ``StepSource``."""
        if len(self._begun) > 1:
            tell_once(STEPS_TOGETHER, steps=len(self._begun))
        for step in self._begun:
            if optimized and (without := step.unweighed):
                some = len(without) < step.taken
                where = f"piece {without[0] + 1} of {step.pieces} of " if some else ""
                raise UsageError(
                    f"the gradients of {where}step {step.number} were not weighed: where shares of "
                    "ranks differ in size, they would not be those of the global batch; write "
                    "step.backward(loss), or (loss * step.weight).backward(), for each piece; "
                    "after step.total() step.backward(loss / total, reduction='sum')"
                )

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # it cannot be set
        """See ``StepSource``."""
        return bool(self._begun)

    def forget_begun(self) -> int:
        """Forgets the steps begun since the last commit; how many they were."""
        begun, self._begun = len(self._begun), ()
        return begun

    def forget_walk(self) -> None:
        """A position was loaded: iterations that were begun before are void."""
        self._begun, self._walk, self.iterates = (), None, False
