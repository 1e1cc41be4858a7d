"""What changes outside of an optimizer's step: noticed, so that it is undone or not believed.

Parameters are not copied at a commit, since they change only within an optimizer's step. That is
so in most scripts, and in the others torch's version counters tell: each operation that writes
into a tensor raises its counter. (What is written by way of ``.data``, by kernels of one's own or
by a CUDA graph does not.) So a parameter that changes between a commit and the next optimizer, such
as an average that is updated after its commit or a weight that is changed by hand, is copied at
each commit from then on, like a buffer; a fault before that finds memory that cannot be undone, and
says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.parts.module_part import ModulePart
from elastic_runtime.parts.optimizer_part import OptimizerPart
from elastic_runtime.parts.part import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from elastic_runtime.parts.part import StatePart

# So often must a parameter have changed before its optimizer to be copied from then on: weights
# that are loaded once in the middle of a training are no reason to keep a copy for the whole run.
_HABIT = 2
# For so many commits what no optimizer holds, but could be trained, is copied in any case: by
# then it shows whether it is an average, and when it is updated.
_TRIAL = 3


class OutsideChanges:
    """Watches the parts of a State from commit to commit."""

    def __init__(self, parts: Sequence[StatePart]) -> None:
        """Takes note of nothing before the first ``record``.

        Args:
            parts: of the State, without a shadow: with one all is copied, and nothing is asked.
        """
        self._modules = [part for part in parts if isinstance(part, ModulePart)]
        self._optimizers = [part for part in parts if isinstance(part, OptimizerPart)]
        self._versions: list[list[int]] = []
        self._early: dict[int, int] = {}  # how often it changed too early, by the tensor's id
        self._commits = 0

    # In the course of a step

    def before_optimizers(self) -> None:
        """The first optimizer of a step is about to begin: looks at what changed before it."""
        for part, versions in zip(self._modules, self._versions, strict=False):
            if (now := _versions(part.remembered)) != versions:
                pairs = zip(part.remembered, versions, now, strict=True)
                moved = [p for p, before, after in pairs if before != after]
                self._note_early(part, moved)

    def commit(self, *, optimized: bool) -> None:
        """A step is about to be committed: learns from it.

        Args:
            optimized: an optimizer has made a step since the last commit.
        """
        if not optimized:
            self.before_optimizers()  # all that has changed was changed by hand
        self._commits += 1

    def choose(self) -> None:
        """Decides which parameters the snapshot that follows copies."""
        if self._commits <= _TRIAL:
            held = {
                id(parameter)
                for part in self._optimizers
                for group in part.optimizer.param_groups
                for parameter in group["params"]
            }
            for part in self._modules:
                part.on_trial = {
                    id(p) for p in part.module.parameters() if p.requires_grad and id(p) not in held
                }
        else:
            for part in self._modules:
                part.on_trial = set()

    def record(self) -> None:
        """Memory is that of a commit now."""
        self._versions = [_versions(part.remembered) for part in self._modules]

    # After an interruption

    def undoable(self) -> str:
        """Whether going back to the last commit brings all of it back, if no optimizer has begun.

        Returns:
            "" if so, else what cannot be undone and what to do about it, for people.
        """
        names: list[str] = []
        for part, versions in zip(self._modules, self._versions, strict=False):
            kept = part.restless | part.on_trial
            now = _versions(part.remembered)
            moved = {
                id(parameter)
                for parameter, before, after in zip(part.remembered, versions, now, strict=True)
                if before != after and id(parameter) not in kept
            }
            here = part.parameters()
            held = {id(parameter) for parameter in part.remembered}
            moved |= {id(p) for p in here.values() if id(p) not in held}  # put in another's place
            names += [f"{part.name}.{name}" for name, p in here.items() if id(p) in moved]
        if not names:
            return ""
        return (
            f"{few(sorted(names))} changed after the commit, outside of an optimizer, and cannot "
            "be undone; leave it to an optimizer, change it right before the commit, or take "
            "State(shadow=True)"
        )

    # Inside

    def _note_early(self, part: ModulePart, moved: Iterable[torch.Tensor]) -> None:
        for parameter in moved:
            number = id(parameter)
            times = self._early[number] = self._early.get(number, 0) + 1
            if times >= _HABIT or number in part.on_trial:
                part.restless.add(number)


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # a tensor that was made for inference has none, and does not change
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
