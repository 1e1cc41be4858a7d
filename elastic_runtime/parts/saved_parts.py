"""All parts of a State together, as a checkpoint has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import CheckpointError, CheckpointUsageError, UsageError
from elastic_runtime.parts.module_part import ModulePart
from elastic_runtime.parts.optimizer_part import OptimizerPart, ParameterNames
from elastic_runtime.parts.other_parts import (
    GeneratorsPart,
    PiecesPart,
    RankPart,
    StatefulPart,
    ValuesPart,
)
from elastic_runtime.parts.part import NOT_NEEDED, few
from elastic_runtime.parts.per_rank import owned_by_rank
from elastic_runtime.parts.pieces import InPieces
from elastic_runtime.parts.plain_values import check_plain, plain_value
from elastic_runtime.parts.tensor_form import TensorForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_runtime.parts.part import Elsewhere, Flat, StatePart
    from elastic_runtime.parts.per_rank import RankPosition


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a checkpoint goes where.

    Attributes:
        targets: by key: a tensor to be filled, or None for another value.
        missing: keys of the program that the checkpoint lacks.
        surplus: keys of the checkpoint that the program has no use for.
        is_foreign: the checkpoint has none of the keys of the program.
    """

    targets: Flat
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    is_foreign: bool = False

    def require_all(self, where: str) -> None:
        """Refuses a checkpoint that is not exactly that of this program.

        Args:
            where: path of the checkpoint.

        Raises:
            CheckpointError: it does not fit the State; the message names what differs.
        """
        if self.missing or self.surplus:
            lacks, more = few(map(_in_words, self.missing)), few(map(_in_words, self.surplus))
            raise CheckpointUsageError(
                f"{where} does not fit this program:"
                + (f" it lacks {lacks};" if self.missing else "")
                + (f" it also has {more};" if self.surplus else "")
                + " make the State as it was, save to another place, or load what fits: "
                "elastic.run(..., strict=False)"
            )


class SavedParts:
    """What of a State is saved."""

    def __init__(self, parts: Iterable[StatePart]) -> None:
        """Takes them, in the order in which they were given."""
        self._parts = list(parts)

    def saved(self, rank: int) -> Flat:
        """What a rank contributes to a checkpoint.

        Args:
            rank: this one; rank 0's values count for what is not a tensor, unless each rank has
                its own.

        Raises:
            CheckpointError: a value could not be loaded again without running code.
        """
        flat: Flat = {}
        for part in self._parts:
            flat.update(part.saved(rank))
        for key, value in flat.items():
            if not isinstance(value, torch.Tensor):
                check_plain(key, value)
        return flat

    def may_differ(self) -> set[str]:
        """The keys of tensors that training does not keep the same on all ranks."""
        return {key for part in self._parts for key in part.may_differ()}

    def wanted(self, where: str, stored: Mapping[str, Elsewhere], place: RankPosition) -> Wanted:
        """Where the content of a checkpoint is to go.

        Args:
            where: path of the checkpoint, for errors.
            stored: what it contains, by key.
            place: which rank this is.

        Raises:
            CheckpointError: a key has another kind or shape of value here.
        """
        flat: Flat = {}
        for part in self._parts:
            flat.update(part.wanted(stored, place))
        targets = {
            key: target
            for key, target in flat.items()
            if key in stored and target is not NOT_NEEDED
        }
        for key, target in targets.items():
            _check_fit(where, key, target, stored[key])
        own = {key for part in self._parts for key in part.saved(place.rank) if not _is_ours(key)}
        own |= {key for key in self.may_differ() if key.startswith(ValuesPart.NAME)}
        return Wanted(
            targets,
            is_foreign=bool(own) and not own & stored.keys(),
            missing=tuple(sorted(flat.keys() - stored.keys())),
            # What is loaded without training has no use for what is the runtime's.
            surplus=tuple(sorted(k for k in stored.keys() - flat.keys() if not _is_ours(k))),
        )

    def restore(self, loaded: Flat, place: RankPosition) -> list[str]:
        """Gives everything loaded to its owner.

        Args:
            loaded: the targets, filled.
            place: which rank this is.

        Returns:
            The parts that start from the beginning: what was saved belongs to other ranks.

        Raises:
            CheckpointError: an owner refuses it.
        """
        reset = []
        for part in self._parts:
            try:
                if not part.restore(of_part(part, loaded), place):
                    reset.append(part.name)
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointUsageError(
                    f"{part.name!r} refused what was loaded for it: {error!r}"
                ) from error
        return reset

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers among them."""
        return [part.optimizer for part in self._parts if isinstance(part, OptimizerPart)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user gave, in order."""
        return tuple(part.name for part in self._parts if not _is_ours(part.name))


def of_part(part: StatePart, flat: Flat) -> Flat:
    """What in a flat state belongs to a part."""
    name = part.name
    starts = f"{name}.", f"{name}:"
    return {k: v for k, v in flat.items() if k == name or k.startswith(starts)}


def part_of(name: str, one: Any, names: ParameterNames) -> StatePart | None:
    """The part that an object is, by its kind; None: it is a plain value.

    Args:
        name: that the user gave it.
        one: the object.
        names: of the parameters of all modules.

    Raises:
        UsageError: its kind cannot be kept.
    """
    if isinstance(one, torch.nn.Module):
        return ModulePart(name, one)
    if isinstance(one, torch.optim.Optimizer):
        return OptimizerPart(name, one, names)
    if (owner := owned_by_rank(one)) is not None:
        return RankPart(name, owner)
    if isinstance(one, InPieces):
        return PiecesPart(name, one)
    if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
        return StatefulPart(name, one)
    try:
        plain_value(one, f"State({name}=...)")
    except UsageError as error:
        raise UsageError(
            f"State({name}=...) is a {type(one).__qualname__} without state_dict and "
            f"load_state_dict, and no plain value; give it these two methods, or leave it out of "
            f"the State ({error})"
        ) from None
    return None


def _in_words(key: str) -> str:
    """What users call it: a value by its own name."""
    return key.removeprefix(f"{ValuesPart.NAME}.")


def _is_ours(key: str) -> bool:
    return key.startswith((ValuesPart.NAME, GeneratorsPart.NAME))


def _check_fit(where: str, key: str, target: object, stored: Elsewhere) -> None:
    if isinstance(target, torch.Tensor) != isinstance(stored, TensorForm):
        raise CheckpointUsageError(f"{where} has another kind of value than the program at {key}")
    if isinstance(stored, TensorForm) and isinstance(target, torch.Tensor):
        if stored.shape != tuple(target.shape):
            raise CheckpointUsageError(
                f"{where} has {key} with shape {stored.shape}, "
                f"this program with {tuple(target.shape)}"
            )
        if stored.dtype != target.dtype and not torch.can_cast(stored.dtype, target.dtype):
            raise CheckpointUsageError(
                f"{where} has {key} as {stored.dtype}, which {target.dtype}, "
                "as this program has it, cannot hold"
            )
