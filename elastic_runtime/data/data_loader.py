"""``elastic.DataLoader``: the steps of a job over a map-style data set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from elastic_runtime.data.kept_loader import KeptLoader
from elastic_runtime.data.outlook import earlier_shares
from elastic_runtime.data.sample_seeds import generator
from elastic_runtime.data.sampler import (
    ElasticBatchSampler,
    Shares,
    fixed_place,
    pieces_of,
    share_of,
)
from elastic_runtime.data.sigterm_shield import Shielded, end_with_program
from elastic_runtime.data.steps import GivesSteps, TrainingStep, refuse_fixed_place, whole_number
from elastic_runtime.errors import UsageError
from elastic_runtime.protocol.messages import ENV_MOST_WORKERS
from elastic_runtime.worker.loop_hints import OTHER_BATCH, PIECE_OF_ONE, tell_once
from elastic_runtime.worker.peers import by_value
from elastic_runtime.worker.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elastic_runtime.data.epoch_order import Order

_OURS = ("batch_size", "sampler", "batch_sampler", "persistent_workers", "generator")


class DataLoader(GivesSteps):
    """Gives the samples of a data set step by step, each once an epoch, whatever happens.

    Example::

        loader = elastic.DataLoader(data, global_batch_size=64, at_once=8, seed=0, num_workers=2)
        for step in loader.steps(epochs=10):
            for inputs, targets in step:
                step.backward(cross_entropy(ddp(inputs), targets))
            optim.step()
            optim.zero_grad()
            state.commit()

    It belongs into the ``State``: a commit moves it past the steps begun since the last one. Its
    processes stay when the world changes; between two worlds they drop what they were reading, and
    begin to read for the next one while the ranks connect, so that an ``order=`` may be asked in
    another thread.

    A loader that is in no State can be iterated directly, for a validation: it gives this rank's
    share of the data set, once and in order, whatever ``shuffle`` says. A batch has ``at_once``
    samples then, or this rank's part of ``global_batch_size``.

    Attributes:
        epoch: the epoch that the next step belongs to, from 0.
        cursor: how many samples of it are committed.
        dataset: of which it gives the samples.
        global_batch_size: samples in a step, over all ranks.
        batch_sampler: knows what a step consists of.
    """

    def __init__(
        self,
        data: Any,
        global_batch_size: int,
        *,
        at_once: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        order: Order | None = None,
        replacement: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> None:
        """Starts at the first sample of epoch 0, and starts its processes.

        Args:
            data: a map-style data set, with ``__len__`` and ``__getitem__``.
            global_batch_size: samples in a step, over all ranks; the last one of an epoch may be
                smaller.
            at_once: how many of them one rank holds at a time; a larger share comes in pieces, as
                many on all ranks. None: each share in one piece.
            seed: of the order, and of ``elastic.sample_rng``. Once there is a saved state, its
                seed counts.
            shuffle: each epoch comes in a random order of its own; False: in that of the data set.
            drop_last: leave out the last step of an epoch if it is smaller.
            order: ``order(epoch, rng)`` gives the indices of an epoch in the order that they shall
                come in; all randomness must be taken from ``rng``, a ``torch.Generator``.
            replacement: ``order`` may name samples more than once, or leave some out.
            rank, world: whose share this process takes, and of how many, where several ranks train
                on the same samples, as under tensor parallelism; not in place.
            **options: of torch's ``DataLoader``, such as ``num_workers`` and ``collate_fn``.

        Raises:
            UsageError: an argument is out of range, or the data set has no numbered samples.
        """
        if taken := sorted(set(options) & set(_OURS)):
            raise UsageError(f"elastic.DataLoader decides on {', '.join(taken)}; remove the option")
        if not options.get("in_order", True):
            raise UsageError(
                "in_order=False would give batches in another order than they are committed in; "
                "remove the option"
            )
        _check(data, global_batch_size, at_once)
        if replacement and order is None:
            raise UsageError("replacement=True is about an order= of your own; give one")
        if order is not None and not shuffle:
            raise UsageError("shuffle=False is an order of its own; give that, or order=")
        self.dataset = data
        self._given_order = order
        self.batch_sampler = ElasticBatchSampler(
            data,
            global_batch_size,
            seed=seed,
            drop_last=drop_last,
            order=order if shuffle else _as_it_is(data),
            replacement=replacement,
            at_once=at_once,
            rank=rank,
            world=world,
        )
        self._fixed = fixed_place(rank, world)
        self._loader = _torch_loader(data, self.batch_sampler, options, seed)
        self._at = 0, 0  # where it reads on
        self._last_batch: int | None = None  # of the last commit, which a script may have changed
        self._is_loaded = False  # since the last iteration

    def __repr__(self) -> str:
        """Its settings and where it is."""
        rank, world = self.place
        return (
            f"{type(self).__name__}({len(self.dataset)} samples, "
            f"global_batch_size={self.global_batch_size}; epoch {self.epoch}, "
            f"cursor {self.cursor}, rank {rank} of {world})"
        )

    @property
    def epoch(self) -> int:  # type: ignore[override]  # it cannot be set
        """The epoch that the next step belongs to."""
        return self.batch_sampler.epoch

    @property
    def cursor(self) -> int:
        """How many samples of that epoch are committed."""
        return self.batch_sampler.cursor

    @property
    def global_batch_size(self) -> int:
        """Samples in a step, over all ranks; the last one of an epoch may have fewer.

        Setting takes effect when ``steps`` is called next.
        """
        return self.batch_sampler.batch_size

    @global_batch_size.setter
    def global_batch_size(self, samples: int) -> None:
        self.batch_sampler.batch_size = samples

    def go_to(self, epoch: int, cursor: int = 0) -> None:
        """Goes to another position, to begin there or to leave out the rest of an epoch.

        To be called on all ranks, between a commit and the next step.

        Args:
            epoch: of the next step, from 0.
            cursor: how many samples of it are left out.
        """
        self.forget_walk()
        self._asked = None  # the same bound may be asked for again, from here
        self.batch_sampler.epoch, self.batch_sampler.cursor = epoch, cursor

    def keep_shares(self, epoch: int, cursor: int, place: tuple[int, int]) -> None:
        """Gives this rank its shares of an earlier world up to where others are already.

        Args:
            epoch, cursor: that position; one that is passed ends it.
            place: the rank of that world, and how many ranks it had.
        """
        sampler = self.batch_sampler
        here, until = (self.epoch, self.cursor), (epoch, cursor)
        sampler.earlier = earlier_shares(
            sampler.earlier, here, until, place, sampler.batch_size, sampler.at_once
        )

    def share_alike(self) -> None:
        """Takes this rank's shares of the present world only."""
        self.batch_sampler.earlier = ()

    @property
    def place(self) -> tuple[int, int]:
        """The rank whose shares these are, and of how many."""
        return self.batch_sampler.place

    def __len__(self) -> int:
        """Steps in the whole epoch that the next step belongs to."""
        return self.batch_sampler.steps_in_epoch

    @property
    def remaining(self) -> int:
        """Steps that are left in it."""
        return self.batch_sampler.steps_left

    def _own_share(self) -> Iterator[Any]:
        sampler, (rank, world) = self.batch_sampler, self.place
        order: Sequence[int] = range(len(self.dataset))
        if self._given_order is not None:
            order = sampler.order_of(self.epoch).tolist()
        first, end = share_of(len(order), rank, world)
        size = sampler.at_once or -(-self.global_batch_size // world)
        return self._over(sampler.numbered(order[first:end], size))

    # The steps

    def _go_to_commit(self) -> None:
        self._at = self.epoch, self.cursor
        before, now = self._last_batch, self.global_batch_size
        if self._is_loaded and before not in (None, now) and not self.trains_alone:
            tell_once(OTHER_BATCH, before=before, now=now)
        self._is_loaded = False
        if self._gloo is not None and not self.trains_alone:
            self._refuse_other_settings()
        if self._progress is not None and self._progress.needs_two and (one := self._alone_at()):
            tell_once(PIECE_OF_ONE, samples=one[0], world=one[1])

    def _refuse_other_settings(self) -> None:
        """Ranks with other settings would train on the same samples, and leave out others.

        Raises:
            UsageError: it is so; raised on all ranks.
        """
        sampler = self.batch_sampler
        mine = {
            "global_batch_size": self.global_batch_size,
            "at_once": sampler.at_once or None,
            "drop_last": sampler.drops_last,
            "epoch": self.epoch,
            "cursor": self.cursor,
            "number of samples": len(self.dataset),
            "order of samples (seed=, shuffle=, order=; a digest)": sampler.order_digest,
        }
        told = self.peers().gather(mine, "loader.steps()")
        for name in mine:
            if len({one[name] for one in told}) > 1:
                raise UsageError(
                    f"the loaders of the ranks differ in {name} "
                    f"({by_value([one[name] for one in told])}): make them with the same settings "
                    "on each rank"
                )

    def _alone_at(self) -> tuple[int, int] | None:
        """A step of an epoch, in samples, and a world that this job may have in which a rank gets
        one sample at a time; None if there are none."""
        sampler, whole = self.batch_sampler, self.global_batch_size
        steps = {whole} if len(self.dataset) >= whole else set()
        if not sampler.drops_last:
            steps.add(len(self.dataset) % whole or whole)
        most = int(os.environ.get(ENV_MOST_WORKERS) or self.place[1])
        for world in range(1, most + 1):
            for samples in sorted(steps):
                pieces = len(pieces_of(samples, 0, world, sampler.at_once))
                if samples // world // pieces < 2:
                    return samples, world
        return None

    def _next_epoch(self) -> int:
        return self._at[0]

    def _rest_of_epoch(self) -> Iterator[TrainingStep]:
        sampler = self.batch_sampler
        outlook = replace(sampler.outlook(*self.place), epoch=self._at[0], cursor=self._at[1])
        if self._at == (self.epoch, self.cursor):
            batches = iter(self._loader)
        else:  # steps were begun and are not committed
            shares = Shares(sampler, outlook)
            shares.begin()
            batches = self._over(shares)
        begun = self._at[0]
        while self._at[0] == begun:
            share = outlook.at(self._at)
            samples, after = sampler.next_step(self._at, share.batch)
            pieces = pieces_of(samples, share.rank, share.world, share.at_once)
            self._at = after
            yield TrainingStep(
                self,
                batches,
                [end - first for first, end in pieces],
                number=self._number(),
                epoch=begun,
                last_of_epoch=after[0] != begun,
                samples=samples,
                world=share.world,
            )
        next(batches, None)  # its processes come to the end of their work, too

    def _over(self, indices: Iterable[list[int]]) -> Iterator[Any]:
        """Reads these batches, with the processes that there are."""
        if isinstance(self._loader, KeptLoader):
            return self._loader.over(indices)
        with self.batch_sampler.giving(indices):
            return iter(self._loader)

    # What a State calls

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it."""
        if self._fixed is not None:
            refuse_fixed_place(self._fixed)
        else:
            self.batch_sampler.enter(world)

    def commit(self) -> None:
        """See ``StepSource``."""
        for _ in range(self.forget_begun()):
            self.batch_sampler.commit()
            self._last_batch = self.global_batch_size

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank and for every number of ranks."""
        return {**self.batch_sampler.state_dict(), "batch": self._last_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position; the order of samples is that of the run that saved it.

        Raises:
            UsageError: the rest of the epoch is not known here, since the data or their order is
                another one.
        """
        self.forget_walk()
        self.batch_sampler.load_state_dict(state)
        self._last_batch, self._is_loaded = state["batch"], True


def _torch_loader(
    data: Any, sampler: ElasticBatchSampler, options: dict[str, Any], seed: int
) -> TorchLoader[Any]:
    # A generator of its own: torch would take a seed for its processes from the global one.
    own = generator("loader", seed, World.of_environment(os.environ).rank)
    if options.get("num_workers", 0) < 1:
        return TorchLoader(data, batch_sampler=sampler, generator=own, **options)
    shielded = {**options, "worker_init_fn": Shielded(options.get("worker_init_fn"))}
    made = KeptLoader(
        data, batch_sampler=sampler, persistent_workers=True, generator=own, **shielded
    )
    end_with_program(made)
    made.keep(sampler)
    return made


def _as_it_is(data: Any) -> Order:
    """An order in which the samples come as the data set has them."""
    return lambda epoch, rng: torch.arange(len(data))


def _check(data: Any, batch: Any, at_once: Any) -> None:
    """Refuses what is no data set with numbered samples, and what is no number of them."""
    if isinstance(data, GivesSteps):
        raise UsageError(f"a {type(data).__name__} is itself a loader: iterate over its steps()")
    if isinstance(data, Mapping) and 0 not in data:
        names = ", ".join(map(repr, [*data][:3]))
        raise UsageError(
            f"a {type(data).__name__} has no numbered samples but {names}: give one of these"
        )
    whole_number("global_batch_size", batch, 1, " of samples")
    whole_number("at_once", 1 if at_once is None else at_once, 1, " of samples")
    try:
        size = -1 if isinstance(data, IterableDataset) else len(data)
    except TypeError:
        size = -1
    if size < 0 or not hasattr(data, "__getitem__"):
        raise UsageError(
            f"elastic.DataLoader needs samples with numbers, and {type(data).__name__} has no "
            "__len__ and __getitem__; read what can only be read in order with "
            "elastic.ShardedStream(shards, global_batch_size=64)"
        )
    if not size:
        raise UsageError("the data set is empty; give at least one sample")
