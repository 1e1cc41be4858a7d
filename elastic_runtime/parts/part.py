"""``StatePart``: one object of a State, of whatever kind.

What it holds has three uses, and each has its methods here:

* it is **saved**, as a flat dict: each tensor of a module or an optimizer under a key of its own,
  which is sharded and resharded by ranges, everything else as one plain value. Wrappers do not show
  in the keys, and an optimizer's state goes by the names of the parameters, so that a checkpoint
  fits any world (``saved``, ``wanted``, ``restore``);
* in place it is **remembered** at each commit, and goes back to it (``keep``, ``snapshot``,
  ``roll_back``);
* in place it is **given to another rank**, in the form in which it is saved, with what a checkpoint
  leaves out (``whole``, ``check``, ``take``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.parts.per_rank import RankPosition
from elastic_runtime.parts.tensor_form import TensorForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Values by key: tensors, and plain values.
Flat = dict[str, Any]

# What is known of something that is elsewhere: its form, or, if it is no tensor, anything else.
Elsewhere = object

# In place of a target: it belongs to the part, but this rank does not need it.
NOT_NEEDED: Any = object()


class StatePart(ABC):
    """One object of a State.

    Attributes:
        name: that the user gave it. The keys of its values begin with it, and then end, or go on
            with "." or ":".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    # Saved

    @abstractmethod
    def saved(self, rank: int) -> Flat:
        """What this rank has to save, by key; tensors are those in use, not copies."""

    @abstractmethod
    def wanted(self, stored: Mapping[str, Elsewhere], place: RankPosition) -> Flat:
        """Where stored values are to go, by key: a tensor to be filled, None for another value."""

    @abstractmethod
    def restore(self, loaded: Flat, place: RankPosition) -> bool:
        """Takes over what was loaded into ``wanted``, as far as there was something.

        Returns:
            False if the part starts from the beginning instead.
        """

    def may_differ(self) -> set[str]:
        """The keys of tensors that training does not keep the same on all ranks.

        The statistics of a normalization are those of what each rank has seen; ``DDP`` gives rank
        0's to all before the next step.
        """
        return set()

    # Remembered

    def keep(self, *, shadow: bool) -> None:  # noqa: B027  # most need no preparation
        """Commits are going to be remembered.

        Args:
            shadow: with a copy of all parameters and optimizer state.

        Raises:
            UsageError: they cannot be.
        """

    @abstractmethod
    def snapshot(self) -> None:
        """Remembers the present state as that of the last commit."""

    @abstractmethod
    def roll_back(self) -> None:
        """Goes back to the last commit."""

    def drop_leftovers(self) -> None:  # noqa: B027  # most have none
        """Drops what a step that was broken off has left and no state dict contains."""

    # Given to another rank

    def whole(self) -> Flat:
        """All of it, with what a checkpoint leaves out; tensors are those in use."""
        return self.saved(0)

    def check(self, there: Flat) -> None:  # noqa: B027  # most cannot tell
        """Finds out whether what another rank has fits this one.

        Args:
            there: that rank's ``whole``, with a ``TensorForm`` for each tensor.

        Raises:
            UsageError: it does not.
        """

    def take(self, given: Flat) -> None:
        """Goes on from what another rank has given.

        Args:
            given: that rank's ``whole``. A tensor that this part holds is that one itself, with the
                new values.
        """
        self.restore(given, RankPosition())


def of_all_ranks(flat: Flat, rank: int) -> Flat:
    """What a rank saves of values that all ranks have: rank 0's count if they are no tensors.

    Tensors may be sharded, and one that all ranks hold is written by one of them.
    """
    return {k: v for k, v in flat.items() if rank == 0 or isinstance(v, torch.Tensor)}


def fresh(stored: Elsewhere) -> torch.Tensor | None:
    """A target for a value that is replaced."""
    if isinstance(stored, TensorForm):
        return torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    return None


def differing(what: str, here: str, there: str) -> UsageError:
    """The error for a rank that has been built in another way than the rank it receives from."""
    return UsageError(
        f"models differ between ranks: {what}: {here} here, {there} on the rank that gives its "
        "state; build the same models and optimizers on every rank. Models of which each rank "
        "holds a part (pipeline or expert parallel) do not recover in place: write "
        "elastic.run(train, state, in_place=False)"
    )


def same_keys(what: str, here: Mapping[str, object], there: Mapping[str, object]) -> None:
    """Raises UsageError if two mappings differ in their keys."""
    if here.keys() != there.keys():
        only_here, only_there = here.keys() - there.keys(), there.keys() - here.keys()
        raise differing(what, f"also {few(sorted(only_here))}", f"also {few(sorted(only_there))}")


def few(names: Iterable[str], limit: int = 3) -> str:
    """Some of these names, and how many there are more; "nothing" if there is none."""
    listed = list(names)
    shown = ", ".join(listed[:limit]) or "nothing"
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"
