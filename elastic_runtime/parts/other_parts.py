"""What is neither module nor optimizer: state dicts, values of each rank, plain values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.parts.generators import RandomGenerators
from elastic_runtime.parts.json_tensors import copied
from elastic_runtime.parts.part import NOT_NEEDED, Flat, StatePart, fresh, of_all_ranks
from elastic_runtime.parts.per_rank import GlobalGenerators, take_from_others
from elastic_runtime.system import torch_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_runtime.parts.part import Elsewhere
    from elastic_runtime.parts.per_rank import OwnedByRank, RankPosition
    from elastic_runtime.parts.pieces import InPieces


def scalers_of(owner: object) -> list[torch.amp.GradScaler]:
    """The scaler that something is, or those that it has for attributes.

    Many scripts have their scaler in an object of their own, which passes its state on.
    """
    held = (owner, *getattr(owner, "__dict__", {}).values())
    return [one for one in held if isinstance(one, torch.amp.GradScaler)]


class StatefulPart(StatePart):
    """Anything with ``state_dict`` and ``load_state_dict``: one value, that of rank 0."""

    def __init__(self, name: str, owner: Any) -> None:
        super().__init__(name)
        self.owner = owner
        self._kept: Any = None

    def saved(self, rank: int) -> Flat:
        return {self.name: self.owner.state_dict()} if rank == 0 else {}

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        return {self.name: None}

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        if self.name in loaded:
            self.owner.load_state_dict(loaded[self.name])
        return True

    def snapshot(self) -> None:
        self._kept = copied(self.owner.state_dict())

    def roll_back(self) -> None:
        self.owner.load_state_dict(copied(self._kept))

    def drop_leftovers(self) -> None:
        for scaler in scalers_of(self.owner):
            torch_private.forget_scaled_step(scaler)


class RankPart(StatePart):
    """What each rank has for itself, under one key for each rank."""

    def __init__(self, name: str, owner: OwnedByRank) -> None:
        super().__init__(name)
        self.owner = owner
        self._is_own = True  # what is loaded is for this rank, not of the ranks of another world
        self._key = re.compile(rf"{re.escape(name)}\.rank-(\d+)")
        self._kept: Any = None

    def saved(self, rank: int) -> Flat:
        return {f"{self.name}.rank-{rank}": self.owner.own_state()}

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        ranks = {int(found[1]): key for key in stored if (found := self._key.fullmatch(key))}
        if sorted(ranks) != list(range(len(ranks))) or not ranks:
            self._is_own = True
            return {self.name: None}  # which the checkpoint lacks
        self._is_own = len(ranks) == place.world
        return {
            key: NOT_NEEDED if self._is_own and rank != place.rank else fresh(stored[key])
            for rank, key in ranks.items()
        }

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        if self._is_own:
            for state in loaded.values():
                self.owner.take(state)
            return True
        states = [loaded[key] for key in sorted(loaded, key=self._rank_of)]
        return take_from_others(self.owner, states, place)

    def snapshot(self) -> None:
        self._kept = copied(self.owner.own_state())

    def roll_back(self) -> None:
        self.owner.take(copied(self._kept))

    def _rank_of(self, key: str) -> int:
        found = self._key.fullmatch(key)
        return int(found[1]) if found else 0


class GeneratorsPart(RankPart):
    """The global generators; a checkpoint without them is as good."""

    NAME = "elastic_runtime.generators"

    def __init__(self) -> None:
        super().__init__(self.NAME, GlobalGenerators())
        self._remembered = RandomGenerators()

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        there = any(self._key.fullmatch(key) for key in stored)
        return super().wanted(stored, place) if there else {}

    def snapshot(self) -> None:
        self._remembered.snapshot()

    def roll_back(self) -> None:
        self._remembered.restore()


class PiecesPart(StatePart):
    """What all ranks hold together, under one key for each piece."""

    def __init__(self, name: str, owner: InPieces) -> None:
        super().__init__(name)
        self._owner = owner
        self._prefix = f"{name}.piece-"
        self._is_saved = False  # the checkpoint has pieces, of which this rank may need none

    def saved(self, rank: int) -> Flat:
        return {self._prefix + name: value for name, value in self._owner.own_pieces().items()}

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        saved = [k.removeprefix(self._prefix) for k in stored if k.startswith(self._prefix)]
        self._is_saved = bool(saved)
        if not saved:
            return {self.name: None}  # which the checkpoint lacks
        needed = set(self._owner.needed_pieces(saved))
        return {
            (key := self._prefix + name): fresh(stored[key]) if name in needed else NOT_NEEDED
            for name in saved
        }

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        if self._is_saved:
            pieces = {key.removeprefix(self._prefix): value for key, value in loaded.items()}
            self._owner.take_pieces(pieces)
        return self._is_saved

    def keep(self, *, shadow: bool) -> None:
        raise UsageError(
            f"ranks hold {self.name!r} ({type(self._owner).__qualname__}) together, each some "
            "pieces of it, which no other rank has: write elastic.run(train, state, in_place=False)"
        )

    def snapshot(self) -> None:
        """Is not asked: ``keep`` has refused."""

    def roll_back(self) -> None:
        """Is not asked: ``keep`` has refused."""


class ValuesPart(StatePart):
    """The plain values of a State, and what its job remembers of itself; which ones may change.

    What was saved without any has none, and is as good.

    Attributes:
        values: of the State, by name; neither this nor ``progress`` is a copy.
        progress: which duties are owed, after which step each was done last, and whether training
            was stopped.
    """

    NAME = "elastic_runtime.values"
    _PREFIX, PROGRESS = f"{NAME}.", f"{NAME}:progress"

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(self.NAME)
        self.values = values
        self.progress: dict[str, Any] = {"owed": [], "done": {}, "stopped": False}
        self._kept: tuple[dict[str, Any], dict[str, Any]] = ({}, copied(self.progress))

    def saved(self, rank: int) -> Flat:
        values = {self._PREFIX + name: value for name, value in self.values.items()}
        return of_all_ranks({**values, self.PROGRESS: dict(self.progress)}, rank)

    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        if self.PROGRESS not in stored:
            return {}
        saved = {key: fresh(stored[key]) for key in stored if key.startswith(self.NAME)}
        return {**{self._PREFIX + name: None for name in self.values}, **saved}

    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        if self.PROGRESS in loaded:
            self.progress.update(loaded[self.PROGRESS])
            self.values.update(self._named(loaded))
        return True

    def may_differ(self) -> set[str]:
        return {self._PREFIX + name for name in self.values}

    def snapshot(self) -> None:
        # Not the dict at once: a value that is a dict of the script's own must be copied as such.
        self._kept = {k: copied(v) for k, v in self.values.items()}, copied(self.progress)

    def roll_back(self) -> None:
        values, progress = copied(self._kept)
        _replace(self.values, values)
        _replace(self.progress, progress)

    def owe(self, names: Sequence[str]) -> None:
        """These duties are owed, as of the last commit."""
        for progress in (self.progress, self._kept[1]):
            progress["owed"] += [name for name in names if name not in progress["owed"]]

    def stop(self) -> None:
        """Training is over with the last commit."""
        self.progress["stopped"] = self._kept[1]["stopped"] = True

    def take(self, given: Flat) -> None:
        _replace(self.values, self._named(given))
        _replace(self.progress, copied(given[self.PROGRESS]))

    def _named(self, flat: Flat) -> dict[str, Any]:
        start = self._PREFIX
        return {k.removeprefix(start): v for k, v in flat.items() if k.startswith(start)}


def _replace(held: dict[str, Any], new: Mapping[str, Any]) -> None:
    held.clear()
    held.update(new)


def moves(value: Any) -> bool:
    """Whether something moves on with each step, such as a sampler with its cursor."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return False  # it may have a layer of that name
    return callable(getattr(value, "commit", None))  # else it is, say, the revision of a code
