"""``ShardedStream``: each sample of many shards once an epoch, in every world.

See ``lot_plan.py`` for what ranks agree on, and ``stream_steps.py`` for how they go on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_runtime.data.sampler import fixed_place, present_place, share_of
from elastic_runtime.data.sharded.lot_plan import EpochRules, Lot, begin_epoch
from elastic_runtime.data.sharded.shard_list import ShardList, check_options
from elastic_runtime.data.sharded.stream_steps import Committed, StreamSteps, StreamWindows
from elastic_runtime.data.sharded.stream_tasks import ShardWork, TaskLoader
from elastic_runtime.data.steps import (
    GivesSteps,
    TrainingStep,
    refuse_fixed_place,
    whole_number,
)
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from elastic_runtime.data.sharded.lot_plan import Settled
    from elastic_runtime.worker.world import World


class ShardedStream(GivesSteps):
    """Gives the samples of shards that are read in order, step by step, each once an epoch.

    Example::

        stream = elastic.ShardedStream("data/*.tar", global_batch_size=256, at_once=32,
                                       shuffle_buffer=10_000, decode=to_tensors, num_workers=4)
        state = elastic.State(model=model, optim=optim, stream=stream)

        def train(world):
            for step in stream.steps(epochs=10):
                for inputs, targets in step:
                    step.backward(criterion(ddp(inputs), targets))
                optim.step()
                optim.zero_grad()
                state.commit()

    All ranks ask for its steps at the same time, and each gets its share of every global batch.

    A stream that is in no ``State`` can be iterated directly, for a validation: it gives this
    rank's share of the shards, once and in an order that is always the same. A rank that finds no
    shard left gets nothing.

    Attributes:
        epoch: the epoch that the next step belongs to, from 0.
        cursor: how many samples of it are committed.
        global_batch_size: samples in a step, over all ranks.
    """

    # Of the present world, where ``elastic.run`` tells.
    _entered: tuple[int, int] | None = None

    def __init__(
        self,
        shards: str | Iterable[Any],
        *,
        global_batch_size: int,
        at_once: int | None = None,
        read: str | Callable[[Any], Iterable[Any]] | None = None,
        decode: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle_buffer: int = 0,
        seed: int = 0,
        streams: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> None:
        """Starts at the first sample of epoch 0; reads nothing yet.

        Args:
            shards: paths, or URLs that fsspec knows; a pattern of paths; an ``IterableDataset`` of
                Hugging Face; or a list of whatever ``read`` understands. The same on all ranks.
            global_batch_size: samples in a step, over all ranks; the last one of an epoch may be
                smaller.
            at_once: how many of them one rank holds at a time; a larger share comes in pieces, as
                many on all ranks. None: each share in one piece.
            read: ``"tar"`` (WebDataset's layout), ``"parquet"``, ``"jsonl"``; or ``read(shard)``
                gives something that can be iterated, each time with the same samples. If that has
                ``state_dict`` and ``load_state_dict`` it goes on from a position, else what comes
                before one is read and dropped. None: the names of the shards tell.
            decode: makes a sample of what was read, in a process of the loader: for ``"tar"`` a
                dict with ``__key__`` and the bytes of each file by its extension, for ``"parquet"``
                a dict by column, for ``"jsonl"`` a line, which is parsed if this is left out.
            collate_fn: makes a batch of a list of samples; None: as torch does.
            shuffle_buffer: samples that are shuffled among each other, over all ranks; at least
                those of 16 steps. The order of the shards is then shuffled too. 0: nothing is.
            seed: of the order, and of ``elastic.sample_rng``. Once there is a saved state, its
                seed counts.
            streams: shards that are read at a time, over all ranks. None: as a batch has samples.
            rank, world: of this process, if it is not that of ``torch.distributed``, as where
                several ranks train on the same samples.
            **options: of ``DataLoader``, such as ``num_workers`` and ``pin_memory``.

        Raises:
            UsageError: an argument is missing or out of range, or nothing tells how shards are
                read.
        """
        size = whole_number("global_batch_size", global_batch_size, 1, " of samples")
        self._at_once = 0 if at_once is None else whole_number("at_once", at_once, 1, " of samples")
        check_options(options)
        self._list = ShardList.of(shards, read, decode)
        number = len(self._list.shards)
        streams = _usual_streams(size, number) if streams is None else streams
        self._rules = EpochRules(
            number,
            size,
            whole_number("streams", streams, 1),
            whole_number("shuffle_buffer", shuffle_buffer, 0, " of samples"),
            whole_number("seed", seed, 0),
        )
        work = ShardWork(self._list.shards, self._list.read, self._list.decode, collate_fn)
        self._windows = StreamWindows(TaskLoader(work, options))
        self._fixed = fixed_place(rank, world)
        self._committed = self._at = Committed(begin_epoch(self._rules, 0), 0, None)
        self._lot_text, self._counts_text = self._committed.lot.text, "null"

    def __repr__(self) -> str:
        """Its shards and batch, and where it is."""
        rank, world = self.place
        return (
            f"{type(self).__name__}({self._rules.shards} shards, "
            f"global_batch_size={self._rules.batch}; epoch {self.epoch}, "
            f"cursor {self.cursor}, rank {rank} of {world})"
        )

    def __bool__(self) -> bool:
        """True, which is not a question of how long it is."""
        return True

    def __len__(self) -> NoReturn:
        """Nobody knows before all shards are read.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a ShardedStream has no length: how many samples a shard has is only known once it is "
            "read; train until stream.epoch changes, or tell your trainer a number of steps. It is "
            "itself the loader, without a DataLoader or a sampler"
        )

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it.

        Args:
            world: the new one.
        """
        if self._fixed is not None:
            refuse_fixed_place(self._fixed)
        self._entered = world.rank, world.size
        self._walk, self.iterates = None, False

    @property
    def epoch(self) -> int:  # type: ignore[override]  # it cannot be set
        """The epoch that the next step belongs to."""
        return self._committed.lot.epoch

    @property
    def cursor(self) -> int:
        """How many samples of that epoch are committed."""
        lot, step, _ = self._committed
        return lot.before + step * lot.rules.batch

    @property
    def global_batch_size(self) -> int:
        """Samples in a step, over all ranks; the last one of an epoch may have fewer."""
        return self._rules.batch

    @property
    def place(self) -> tuple[int, int]:
        """The rank whose shares these are, and of how many."""
        return self._fixed or self._entered or present_place()

    def commit(self) -> None:
        """See ``StepSource``."""
        if self.forget_begun():
            self._go_to(self._at)

    def _go_to_commit(self) -> None:
        self._at = self._committed
        self._windows.restart(self._at.lot)

    def _next_epoch(self) -> int:
        return self._at.lot.epoch

    def _rest_of_epoch(self) -> Iterator[TrainingStep]:
        epoch, place = self._next_epoch(), self.place
        for given in StreamSteps(
            self._at,
            self._windows,
            gather=self.peers().gather,
            place=place,
            at_once=self._at_once,
            follow=self._follow,
            shards=self._list,
        ):
            self._at = given.after
            yield TrainingStep(
                self,
                given.pieces,
                given.own,
                number=self._number(),
                epoch=epoch,
                last_of_epoch=self._next_epoch() != epoch,
                samples=given.total,
                world=place[1],
            )
        if self._next_epoch() == epoch:
            raise UsageError(
                "there is no sample in any of the shards, or none that read= gives: an epoch of "
                "them has no step"
            )

    def _own_share(self) -> Iterator[Any]:
        rank, world = self.place
        first, end = share_of(self._rules.shards, rank, world)
        size = self._at_once or -(-self._rules.batch // world)
        streams = min(self._rules.streams, _usual_streams(size, end - first))
        rules = replace(self._rules, shards=end, batch=size, streams=streams, shuffle=0)
        begin = Committed(begin_epoch(rules, 0, given=first), 0, None)
        self._windows.restart(begin.lot)
        return self._batches_from(begin)

    def _batches_from(self, begin: Committed) -> Iterator[Any]:
        # No other rank reads these shards.
        for given in StreamSteps(
            begin,
            self._windows,
            gather=lambda told: [told],
            place=(0, 1),
            at_once=0,
            follow=lambda settled: settled.next,
            shards=self._list,
        ):
            yield from given.pieces
            self._windows.forget_before(given.after.lot)

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on every rank and for every number of ranks."""
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "step": self._committed.step,
            "seed": self._committed.lot.rules.seed,
            "shards": self._list.identity,
            "lot": self._lot_text,
            "counts": self._counts_text,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved position; iterations that were begun before are void.

        Raises:
            UsageError: the shards are others, in the middle of an epoch.
        """
        if missing := sorted(self.state_dict().keys() - state.keys()):
            raise UsageError(
                f"the saved state of this ShardedStream is that of something else: it has no "
                f"{', '.join(missing)}; give the stream another name among the entries"
            )
        self.forget_walk()
        self._rules = replace(self._rules, seed=state["seed"])
        if not state["cursor"]:
            # Nothing of this epoch counts yet: it may be with other shards, and otherwise.
            self._go_to(Committed(begin_epoch(self._rules, state["epoch"]), 0, None))
            return
        if state["shards"] != self._list.identity:
            raise UsageError(
                f"the saved position is in the middle of epoch {state['epoch']} of other shards "
                f"({state['shards']}; there are {self._list.identity} here, their number and a "
                "digest of their names in order); go on with the same, and change them between two "
                "epochs"
            )
        counts = json.loads(state["counts"])
        self._go_to(
            Committed(
                Lot.of_text(state["lot"]),
                int(state["step"]),
                None if counts is None else tuple(counts),
            )
        )

    def _follow(self, settled: Settled) -> Lot:
        """What comes next, under the present rules: at once, or from the next epoch on."""
        lot = settled.next
        if settled.last:
            return begin_epoch(self._rules, lot.epoch)
        return replace(lot, rules=replace(lot.rules, batch=self._rules.batch))

    def _go_to(self, committed: Committed) -> None:
        before, self._committed = self._committed, committed
        # Texts, as a State copies them at each commit.
        if committed.lot is not before.lot:
            self._lot_text = committed.lot.text
            self._windows.forget_before(committed.lot)
        if committed.counts is not before.counts:
            self._counts_text = json.dumps(committed.counts)


def _usual_streams(batch: int, shards: int) -> int:
    """As many as a batch has samples, or the next number below that makes even parts of a batch.

    Otherwise ranks share streams, and each of these must be read by several.
    """
    most = min(batch, shards)
    return next((n for n in range(most, most // 2, -1) if batch % n == 0), most)
