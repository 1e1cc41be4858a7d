"""What each rank of a State has for itself: generators that were given to it, and ``PerRank``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.entries.per_rank_values import (
    GlobalGenerators,
    PerRank,
    owned_by_rank,
    seed_after,
    value_digest,
)
from elastic_runtime.worker.state import json_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.checkpoint.entries.per_rank_values import OwnedByRank, RankPosition

_GLOBAL = "elastic_runtime.generators"


class RankValues:
    """Remembers them at a commit, and makes those of a new rank from those of another."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Takes the objects of a State that each rank has for itself, by name."""
        found = {name: owned_by_rank(value) for name, value in objects.items()}
        self._owners: dict[str, OwnedByRank] = {n: one for n, one in found.items() if one}
        self._kept: dict[str, Any] = {}

    def snapshot(self) -> None:
        """Remembers what this rank has."""
        self._kept = {n: json_tensors.copied(one.own_state()) for n, one in self._owners.items()}

    def roll_back(self) -> None:
        """Goes back to what was remembered."""
        for name, state in self._kept.items():
            self._owners[name].take(json_tensors.copied(state))

    def for_others(self, *, generators: bool) -> dict[str, Any]:
        """What a new rank needs to know of this one, as JSON.

        Args:
            generators: the global ones are kept as well.
        """
        owners = dict(self._owners)
        if generators:
            owners[_GLOBAL] = GlobalGenerators()
        told: dict[str, Any] = {}
        for name, owner in owners.items():
            state = owner.own_state()
            told[name] = (
                {"value": json_tensors.pack(state, name)}
                if isinstance(owner, PerRank)
                else {"digest": value_digest(state)}
            )
        return told

    def take_of_another(self, told: dict[str, Any], place: RankPosition) -> None:
        """Begins with what follows from what another rank has.

        Args:
            told: by that rank, see ``for_others``.
            place: this rank.
        """
        for name, what in told.items():
            owner = GlobalGenerators() if name == _GLOBAL else self._owners.get(name)
            if owner is None:
                continue
            if "digest" in what:
                seed_after(owner, what["digest"], place)
            else:
                owner.take_foreign([json_tensors.unpack(what["value"])], place)
