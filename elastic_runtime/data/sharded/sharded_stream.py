"""``ShardedStream``: each sample of many shards once an epoch, in every world.

See ``lot_plan.py`` for what ranks agree on, and ``stream_steps.py`` for how they go on.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from elastic_runtime.data.sampler import present_place
from elastic_runtime.data.sharded.lot_plan import EpochRules, Lot, begin_epoch
from elastic_runtime.data.sharded.shard_list import ShardList, check_options
from elastic_runtime.data.sharded.stream_steps import Committed, StreamSteps, StreamWindows
from elastic_runtime.data.sharded.stream_tasks import ShardWork, TaskLoader
from elastic_runtime.data.steps import GivesSteps, TrainingStep, refuse_fixed_place
from elastic_runtime.errors import UsageError
from elastic_runtime.worker import missing_parts
from elastic_runtime.worker.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from elastic_runtime.data.sharded.lot_plan import Settled
    from elastic_runtime.data.sharded.stream_steps import GivenStep
    from elastic_runtime.worker.world import World


class ShardedStream(GivesSteps):
    """The batches of this rank from shards that are read in order.

    Example::

        stream = elastic.ShardedStream("data/*.tar", batch_size=256, shuffle_buffer=10_000,
                                       decode=to_tensors, num_workers=4)
        state = elastic.State(model=model, optim=optim, stream=stream)

        def train(world):
            for step in stream.steps(epochs=10):
                for inputs, targets in step:
                    step.backward(criterion(ddp(inputs), targets))
                optim.step()
                optim.zero_grad()
                state.commit()

    All ranks iterate over it at the same time, and each gets its share of every global batch.
    """

    # Of the present world, where ``elastic.run`` tells.
    _entered: tuple[int, int] | None = None
    _peers: Peers | _Alone | None = None

    def __init__(
        self,
        shards: str | Iterable[Any],
        *,
        batch_size: int,
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
            batch_size: samples in a global batch, over all ranks; the last one of an epoch may be
                smaller.
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
        size = _whole("batch_size", batch_size, 1)
        check_options(options)
        self._list = ShardList.of(shards, read, decode)
        number = len(self._list.shards)
        usual = _usual_streams(size, number)
        streams = usual if streams is None else _whole("streams", streams, 1)
        shuffle = _whole("shuffle_buffer", shuffle_buffer, 0)
        self._rules = EpochRules(number, size, streams, shuffle, _whole("seed", seed, 0))
        work = ShardWork(self._list.shards, self._list.read, self._list.decode, collate_fn)
        self._windows = StreamWindows(TaskLoader(work, options))
        self._fixed = _fixed_place(rank, world)
        self._tickets = itertools.count()
        self._under_way: deque[GivenStep] = deque()
        self._committed = Committed(begin_epoch(self._rules, 0), 0, None)
        self._lot_text, self._counts_text = self._committed.lot.text, "null"

    def __repr__(self) -> str:
        """Its shards and batch, and where it is."""
        rank, world = self.place
        return (
            f"{type(self).__name__}({self._rules.shards} shards, batch_size={self._rules.batch}; "
            f"epoch {self.epoch}, cursor {self.cursor}, rank {rank} of {world})"
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
            "itself the loader: iterate over it, without a DataLoader or a sampler"
        )

    def enter(self, world: World) -> None:
        """Takes this rank's shares in another world from now on; ``elastic.run`` calls it.

        Args:
            world: the new one.
        """
        if self._fixed is not None:
            refuse_fixed_place(self._fixed)
        self._entered = world.rank, world.size
        self._peers = self._gloo = self._own_peers = None
        # Iterations of before are void. What was given last may still be committed: where ranks
        # have finished a step that a fault has interrupted, it counts.
        self._under_way = deque(self._under_way)
        self._windows.restart()

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches, from the last commit to the end of the epoch.

        Raises:
            BrokenShard: a shard is missing, or cannot be understood; on all ranks.
            UsageError: ranks have different shards or are at different places.
        """
        self._under_way = deque()
        self._windows.forget_steps()
        told = self._entered is not None
        if self._peers is None or not (told or _are_there(self._peers)):
            self._peers = self._met()
        steps = StreamSteps(
            self._committed,
            self._windows,
            self._peers,
            self.place,
            self._follow,
            self._tickets,
            self._list,
        )
        return _Batches(self, iter(steps), self._under_way)

    def _met(self) -> Peers | _Alone:
        if self._fixed is not None and self._fixed[1] == 1:
            return _Alone()
        if self._peers is not None:  # of a world that is gone, of which nobody has told the stream
            self._windows.restart()
        several = self._gloo is not None and dist.get_world_size() > 1
        return Peers(self._gloo.another() if self._gloo and several else None)

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
    def place(self) -> tuple[int, int]:
        """The rank whose shares these are, and of how many."""
        return self._fixed or self._entered or present_place()

    @property
    def loss_scale(self) -> float:
        """What to multiply this rank's mean loss with, in the step that is under way."""
        if not self._under_way:
            raise UsageError("loss_scale belongs to a batch, and none has been taken")
        step = self._under_way[0]
        return step.own * self.place[1] / step.total

    def commit(self) -> None:
        """Moves on past the steps begun since the last commit; without ``steps()``, past the oldest
        batch that was taken and not committed yet.
        """
        for _ in range(self.forget_begun() or 1):
            if self._under_way:
                self._go_to(self._under_way.popleft().after)

    def _go_to_commit(self) -> None:
        self._under_way = deque()

    def _next_epoch(self) -> int:
        return self._under_way[-1].after.lot.epoch if self._under_way else self.epoch

    def _rest_of_epoch(self) -> Iterator[TrainingStep]:
        if self._begun:
            raise UsageError(
                "an epoch of a ShardedStream is over, and its last step is not committed; commit "
                "it before the next epoch begins"
            )
        epoch, (_, world) = self.epoch, self.place
        for batch in iter(self):
            given = self._under_way[-1]
            if given.total == self._rules.batch:
                self._tell_pieces(given.total, -(-given.total // world), 1, world)
            yield TrainingStep(
                self,
                iter((batch,)),
                [given.own],
                number=self._number(),
                epoch=epoch,
                last_of_epoch=given.after.lot.epoch != epoch,
                samples=given.total,
                world=world,
            )

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
        self._under_way = deque()
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


class _Alone:
    """No other rank reads the same stream."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


def _are_there(peers: Peers | _Alone) -> bool:
    """Whether these are still the ranks of the present world."""
    if isinstance(peers, _Alone):
        return True
    if peers.group is None:
        return present_place()[1] == 1
    try:
        return bool(dist.get_rank(peers.group) == peers.rank)
    except (ValueError, RuntimeError):  # the group has ended
        return False


class _Batches:
    """One iteration; see ``missing_parts.Batches``."""

    called = "the ShardedStream", "stream"

    def __init__(
        self,
        stream: ShardedStream,
        steps: Iterator[tuple[Any, GivenStep]],
        under_way: deque[GivenStep],
    ) -> None:
        self.sampler = stream
        self.began = stream.epoch, stream.cursor
        self.given = 0
        self._steps, self._under_way = steps, under_way

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self.sampler._under_way is not self._under_way:
            raise UsageError(
                "this iteration over the stream was begun before another one, or before a position "
                "was loaded; iterate over the stream anew"
            )
        if not self.given:
            missing_parts.begun(self)
        batch, step = next(self._steps)
        self._under_way.append(step)
        self.given += 1
        return batch


def _usual_streams(batch: int, shards: int) -> int:
    """As many as a batch has samples, or the next number below that makes even parts of a batch.

    Otherwise ranks share streams, and each of these must be read by several.
    """
    most = min(batch, shards)
    return next((n for n in range(most, most // 2, -1) if batch % n == 0), most)


def _fixed_place(rank: int | None, world: int | None) -> tuple[int, int] | None:
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        raise UsageError("give rank= and world= both, or none of them")
    if not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank} of {world}; ranks count from 0")
    return rank, world


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is a whole number from {least} on, not {value!r}")
    return value
