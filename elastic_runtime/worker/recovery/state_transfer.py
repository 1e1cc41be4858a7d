"""Gives all ranks of a new group the same state: that of the rank with the newest commit.

All ranks exchange their status and choose the sources (``recovery_source.choose``). If something
newer may have been saved, it is looked for first, and loaded. Only ranks that are behind or new
receive parameters and optimizer state; what may differ between ranks of one commit (buffers, plain
values) is sent from the first source to all. At the end all ranks compare digests.

Each source sends to a chain of receivers, and each receiver passes on what it gets, message by
message: so no rank sends more than one copy. A receiver that has an older commit keeps it until
everything has arrived. A fault during the transfer is a ``RuntimeError`` of gloo.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import ElasticError, UsageError
from elastic_runtime.parts.commit_image import (
    CommitImage,
    destinations,
    forms_of,
    present,
    tensor_bytes,
)
from elastic_runtime.worker.recovery.recovery_source import (
    NOTHING,
    MemoryCondition,
    RankStatus,
    RecoveryChoice,
    RecoveryKind,
    StateVersion,
    choose,
    may_be_behind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.training.state import State

# Bytes of a message: enough for full speed, little enough for a chain to overlap.
MESSAGE_BYTES = 8 << 20
# Messages that are on their way at once, in each direction.
_AHEAD = 8


class RanksDiffer(ElasticError):
    """After all ranks were brought together they still hold different states."""


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Bytes ``start`` to ``stop`` of the tensor with this number."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Restorer:
    """What this rank knows of saved states, and how to load one.

    Attributes:
        term: the newest one in which this rank's memory was saved, or was about to be.
        base: a save that this rank's memory is known to contain.
        load: loads the newest saved state if it is newer than the given one, on all ranks; returns
            None if there is none, and then every rank's memory is unchanged.
        received: called as soon as this rank has received the state of the sources.
    """

    term: int
    base: StateVersion
    load: Callable[[StateVersion | None], StateVersion | None]
    received: Callable[[RecoveryChoice], None] = lambda choice: None


def bring_together(
    state: State,
    wire: Any,
    rank: int,
    world: int,
    restorer: Restorer | None = None,
    *,
    before: int = -1,
) -> RecoveryChoice:
    """Makes the states of all ranks one; to be called by all ranks of a group.

    Args:
        state: of this rank.
        wire: a ``ProcessGroupGloo`` of all ranks that nothing else uses meanwhile; may be None if
            there is only this rank.
        rank: of this process.
        world: how many ranks there are.
        restorer: knows what is saved; None: nothing ever is.
        before: the number of the round directly before this one, -1 if this rank does not know.

    Returns:
        What was chosen, the same on all ranks. All states are clean at its step then, unless its
        kind is ``lost``: nothing has been changed.

    Raises:
        UsageError: the states do not fit each other; raised on all ranks, nothing was changed.
        RanksDiffer: the states are not alike afterwards.
        RuntimeError: a rank was lost on the way.
    """
    group = TransferGroup(wire, rank, world)
    statuses = _all_statuses(state, group, restorer, before)
    choice = choose(statuses)
    asks = restorer is not None and (
        choice.kind is not RecoveryKind.MEMORY or may_be_behind(statuses)
    )
    while restorer is not None and asks:
        found = restorer.load(choice.in_memory)
        if found is not None:
            state.remember_commit(found.step)
            choice = _from_saved(statuses, choice, found)
            break
        # If it was damaged while it was loaded, the memory that it was to replace may be gone.
        again = choose(_all_statuses(state, group, restorer, before))
        asks = again.in_memory != choice.in_memory
        choice = replace(again, asked=True)
    if choice.sources:
        _equalize(state, group, choice, restorer)
    return choice


def _from_saved(
    statuses: Sequence[RankStatus], memory: RecoveryChoice, found: StateVersion
) -> RecoveryChoice:
    """All ranks have loaded the same. It may lack counters, and they may differ by now."""
    committed = [s.step for s in statuses if s.condition is not MemoryCondition.NEW]
    why = memory.reason if committed else "no rank has a state in memory"
    return RecoveryChoice(
        found.step,
        sources=tuple(range(len(statuses))),
        receivers=(),
        kind=RecoveryKind.SAVED,
        reason=f"{why}; step {found.step} of term {found.term} is the newest that is saved",
        in_memory=found,
        term=max(memory.term, found.term),
        asked=True,
        given_up=max(0, max(committed, default=0) - found.step),
    )


def _all_statuses(
    state: State, group: TransferGroup, restorer: Restorer | None, before: int
) -> list[RankStatus]:
    mine = state.rank_status()
    term, base = (restorer.term, restorer.base) if restorer is not None else (0, NOTHING)
    # Each rank says for itself whether it was there: a new one cannot know of the others.
    latest = mine.round == before
    rows = group.gather([mine.step, mine.condition, mine.round, term, latest, *base])
    return [
        RankStatus(step, MemoryCondition(how), last, known, bool(was), StateVersion(*saved))
        for step, how, last, known, was, *saved in rows
    ]


def _equalize(
    state: State, group: TransferGroup, choice: RecoveryChoice, restorer: Restorer | None
) -> None:
    """Gives all ranks what the sources have."""
    receives = group.rank in choice.receivers
    if group.rank in choice.sources:
        if choice.kind is RecoveryKind.FRESH:
            state.remember_commit(0)
        else:
            state.roll_back()
    failure: Exception | None = None
    if choice.receivers or len(set(_digests(state, group))) > 1:
        image = _exchange(state, group, choice)
        try:
            state._load(*image, alike=choice.round if receives else None)
            if receives and restorer is not None:
                restorer.received(choice)
        except Exception as error:  # the others must know it before this rank fails
            failure = error
        digests = _digests(None if failure else state, group)
        if failure is not None:
            raise failure
        _compare(digests, choice, state, group)


def plan(sizes: Sequence[int], limit: int) -> list[list[TensorSlice]]:
    """Cuts tensors into messages: large ones into several, small ones are packed.

    Args:
        sizes: of all tensors, in bytes.
        limit: of a message, in bytes.

    Returns:
        The pieces of each message. A message has either one piece, or many that are whole.
    """
    messages: list[list[TensorSlice]] = []
    packed: list[TensorSlice] = []
    filled = 0
    for number, size in enumerate(sizes):
        if size * 4 >= limit:
            cuts = range(0, size, limit)
            messages.extend([TensorSlice(number, cut, min(cut + limit, size))] for cut in cuts)
        elif size:
            if filled + size > limit:
                messages.append(packed)
                packed, filled = [], 0
            packed.append(TensorSlice(number, 0, size))
            filled += size
    return [*messages, packed] if packed else messages


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """The few collectives that are needed here, over gloo itself."""

    wire: Any
    rank: int
    world: int

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """These numbers of all ranks, in rank order."""
        if self.world == 1:
            return [numbers]
        row = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        rows = [torch.empty_like(row) for _ in range(self.world)]
        self.wire.allgather([rows], [row]).wait()
        return [row.tolist() for row in rows]

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Fills a tensor with that of the root."""
        if self.world > 1 and tensor.numel():
            self.wire.broadcast(tensor, root).wait()

    def tell(self, content: Any, root: int) -> Any:
        """What the root gives, as JSON, to everybody."""
        text = json.dumps(content).encode() if self.rank == root else b""
        length = torch.tensor([len(text)], dtype=torch.int64, device="cpu")
        self.broadcast(length, root)
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        if text:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        self.broadcast(data, root)
        return json.loads(tensor_bytes(data))

    def agree(self, problem: str) -> None:
        """Raises UsageError on all ranks if there is a problem on any."""
        for rank, (failed,) in enumerate(self.gather([bool(problem)])):
            if failed:
                raise UsageError(f"rank {rank}: {self.tell(problem, rank)}")


def _digests(state: State | None, group: TransferGroup) -> list[int]:
    """The digests of all ranks; -1 from one that has no state."""
    digest = -1 if state is None else state._digest()
    return [digest for (digest,) in group.gather([digest])]


def _compare(
    digests: list[int], choice: RecoveryChoice, state: State, group: TransferGroup
) -> None:
    first = choice.sources[0]
    others = [rank for rank, digest in enumerate(digests) if digest != digests[first]]
    if not others:
        return
    which = "some object"
    if -1 not in digests:  # a rank that has failed is no longer here to be asked
        own = {part.name: CommitImage.of([part]).digest for part in state._parts}
        theirs = group.tell(own, first)
        differing = [name for name in own if own[name] != theirs.get(name)]
        told = {name for rank in others for name in group.tell(differing, rank)}
        which = " or ".join(repr(name) for name in own if name in told) or which
    raise RanksDiffer(
        f"after step {choice.step} was given to all ranks, rank {', '.join(map(str, others))} "
        f"holds another state than rank {first}: the load_state_dict of {which} does not bring "
        "back what its state_dict gave, or failed, or it was made otherwise on that rank; see the "
        "logs of these ranks"
    )


def _exchange(
    state: State, group: TransferGroup, choice: RecoveryChoice
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Everything that this rank needs to be where the first source is.

    Returns:
        The ``meta`` of the first source, and for each of its tensors this rank's own or what
        was received for it.
    """
    first = choice.sources[0]
    receives = group.rank in choice.receivers
    # Memory that is worth nothing can be received into; what is fresh on other ranks is no commit.
    worthless = state.rank_status().condition in (MemoryCondition.NEW, MemoryCondition.DIRTY)
    in_place = receives and worthless and choice.kind is RecoveryKind.MEMORY
    meta: dict[str, Any] = {}
    tensors: list[torch.Tensor] = []
    problem = ""
    try:
        if group.rank == first:
            meta, tensors = state.commit_image(for_others=True)
        meta = group.tell(meta, first)
        if meta and group.rank != first:
            state._check(meta)
            tensors = _receive_buffers(state, meta, receives=receives, in_place=in_place)
    except UsageError as error:
        problem = str(error)
        if group.rank == first:
            group.tell(meta, first)
    group.agree(problem)
    if in_place:
        state.give_up(choice.step)
    sizes, alike = [form.nbytes for form in forms_of(meta)], set(meta["alike"])
    differ = [0 if number in alike else size for number, size in enumerate(sizes)]
    spread(Messages(tensors, plan(differ, MESSAGE_BYTES)), group, first)
    bulk = [size if number in alike else 0 for number, size in enumerate(sizes)]
    before, after = neighbours(choice, group.rank)
    relay(Messages(tensors, plan(bulk, MESSAGE_BYTES)), group.wire, before, after)
    return meta, tensors


def _receive_buffers(
    state: State, meta: dict[str, Any], *, receives: bool, in_place: bool
) -> list[torch.Tensor]:
    """What this rank has, and new tensors for what it has not."""
    forms = forms_of(meta)
    have: list[torch.Tensor | None] = [None] * len(forms)
    if in_place:
        have = destinations(state._parts, meta)
    elif not receives:
        here = present(state._parts, meta)
        for number in meta["alike"]:
            have[number] = here[number]
            if have[number] is None:
                raise UsageError(
                    "the optimizer state of this rank has another form than that of the rank "
                    "that gives its state; use the same optimizers and devices on every rank"
                )
    return [state.tensor_for(form) if t is None else t for t, form in zip(have, forms, strict=True)]


def neighbours(choice: RecoveryChoice, rank: int) -> tuple[int | None, int | None]:
    """From which rank a rank receives, and to which it sends.

    Args:
        choice: sources and receivers.
        rank: whose neighbours.

    Returns:
        The rank before it and the one after it in its chain, None where there is none.
    """
    for number, source in enumerate(choice.sources):
        chain = (source, *choice.receivers[number :: len(choice.sources)])
        if rank in chain:
            place = chain.index(rank)
            before = chain[place - 1] if place else None
            return before, chain[place + 1] if place + 1 < len(chain) else None
    return None, None


class Messages:
    """The messages of a plan: cut out of tensors, or put into them."""

    def __init__(self, tensors: list[torch.Tensor], messages: list[list[TensorSlice]]) -> None:
        self.order = messages
        self._tensors = tensors
        self._last: tuple[int, torch.Tensor] | None = None

    def content(self, pieces: list[TensorSlice]) -> torch.Tensor:
        """The bytes of a message."""
        parts = [self._bytes(piece) for piece in pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def buffer(self, pieces: list[TensorSlice]) -> torch.Tensor:
        """Where to receive a message: in its tensor, if it is part of one."""
        if len(pieces) == 1:
            return self._bytes(pieces[0])
        size = sum(piece.stop for piece in pieces)
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def put(self, pieces: list[TensorSlice], content: torch.Tensor) -> None:
        """Gives its tensors what was received for them."""
        if len(pieces) > 1:
            parts = content.split([piece.stop for piece in pieces])
            for piece, part in zip(pieces, parts, strict=True):
                self._bytes(piece).copy_(part)

    def _bytes(self, piece: TensorSlice) -> torch.Tensor:
        if self._last is None or self._last[0] != piece.number:
            # From a GPU once for all pieces. What is received into is contiguous on the CPU.
            tensor = self._tensors[piece.number].detach().cpu().contiguous()
            self._last = (piece.number, tensor.view(-1).view(torch.uint8))
        return self._last[1][piece.start : piece.stop]


def spread(messages: Messages, group: TransferGroup, root: int) -> None:
    """Gives all ranks the same."""
    for pieces in messages.order:
        content = messages.content(pieces) if group.rank == root else messages.buffer(pieces)
        group.broadcast(content, root)
        if group.rank != root:
            messages.put(pieces, content)


def relay(messages: Messages, wire: Any, before: int | None, after: int | None) -> None:
    """Takes all messages from one neighbour, if there is one, and hands them to the other."""
    coming: deque[tuple[Any, torch.Tensor]] = deque()
    going: deque[Any] = deque()
    asked = 0
    for tag, pieces in enumerate(messages.order):
        if before is not None:
            while asked < min(tag + _AHEAD, len(messages.order)):
                buffer = messages.buffer(messages.order[asked])
                coming.append((wire.recv([buffer], before, asked), buffer))
                asked += 1
            work, content = coming.popleft()
            work.wait()
            messages.put(pieces, content)
        elif after is not None:
            content = messages.content(pieces)
        else:
            return
        if after is not None:
            # A work keeps its tensor until it is done.
            going.append(wire.send([content], after, tag))
            if len(going) > _AHEAD:
                going.popleft().wait()
    for work in going:
        work.wait()
