"""What changes outside of an optimizer's step: noticed, so that it is undone or not believed.

Parameters are not copied at a commit, since they change only within an optimizer's step. That is
so in most scripts, and in the others torch's version counters tell: each operation that writes
into a tensor raises its counter. (What is written by way of ``.data``, by kernels of one's own or
by a CUDA graph does not.) So

- a parameter that changes between a commit and the next optimizer, such as an average that is
  updated after its commit or a weight that is changed by hand, is copied at each commit from then
  on, like a buffer; a fault before that finds memory that cannot be undone, and says so;
- a step whose optimizers have finished is whole only if all has changed that ever changed between
  an optimizer and its commit: an average, a scheduler, a counter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elastic_runtime.worker.state.json_tensors import copied
from elastic_runtime.worker.state.state_parts import ModulePart, OptimizerPart, StatefulPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_runtime.worker.state.state_parts import StatePart

# So often must a parameter have changed before its optimizer to be copied from then on: weights
# that are loaded once in the middle of a training are no reason to keep a copy for the whole run.
_HABIT = 2
# For so many commits what no optimizer holds, but could be trained, is copied in any case: by
# then it shows whether it is an average, and when it is updated.
_TRIAL = 3

_SHOWN = 3  # names in a message
_PLAIN = (dict, list)
_ABSENT = object()


class OutsideChanges:
    """Watches the parts of a State from commit to commit."""

    def __init__(self, parts: Sequence[StatePart], counters: dict[str, Any]) -> None:
        """Takes note of nothing before the first ``record``.

        Args:
            parts: of the State, without a shadow: with one all is copied, and nothing is asked.
            counters: of the State, as they are at any time.
        """
        self._modules = [part for part in parts if isinstance(part, ModulePart)]
        self._optimizers = [part for part in parts if isinstance(part, OptimizerPart)]
        self._others = [part for part in parts if isinstance(part, StatefulPart)]
        self._counters = counters
        self._versions: list[list[int]] = []
        self._early: dict[int, int] = {}  # how often it changed too early, by the tensor's id
        self._commits = 0
        self._mark: dict[str, Any] | None = None  # what there was when the optimizers had finished
        self.tail: set[str] = set()  # what has ever changed between an optimizer and its commit

    # In the course of a step

    def before_optimizers(self) -> None:
        """The first optimizer of a step is about to begin: looks at what changed before it."""
        for part, versions in zip(self._modules, self._versions, strict=False):
            if (now := _versions(part.remembered)) != versions:
                pairs = zip(part.remembered, versions, now, strict=True)
                moved = [p for p, before, after in pairs if before != after]
                self._note_early(part, moved)

    def after_optimizers(self) -> None:
        """All optimizers of a step have finished, as far as is known."""
        seen = self._look()
        self._mark = {k: v if type(v) is _Versions else copied(v) for k, v in seen.items()}

    def commit(self, *, optimized: bool) -> None:
        """A step is about to be committed: learns from it.

        Args:
            optimized: an optimizer has made a step since the last commit.
        """
        if not optimized:
            self.before_optimizers()  # all that has changed was changed by hand
        elif self._mark is not None:
            self.tail |= self._moved()
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
        self._mark = None

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
            f"{_few(names)} changed after the commit and outside of an optimizer, and cannot be "
            "undone; leave it to an optimizer, change it right before the commit, or take "
            "State(shadow=True)"
        )

    def unfinished(self, *, certain: bool) -> str:
        """Whether a step whose optimizers have finished lacks something that comes after them.

        Args:
            certain: no collective of a GPU has been called since, so that what has changed cannot
                come of one that was cut off.

        Returns:
            "" if it is whole as far as is known, else what it lacks, for people.
        """
        if self._mark is None:
            return ""
        moved = self._moved()
        if missing := self.tail - moved:
            return (
                f"the optimizer of the step had finished, but {_few(missing)} had yet to follow "
                "before its commit; let no collective come between an optimizer and its commit, or "
                "take State(shadow=True)"
            )
        if moved and not certain:
            return (
                f"{_few(moved)} changed after a collective that was cut off; let no collective "
                "come between an optimizer and its commit, or take State(shadow=True)"
            )
        return ""

    # Inside

    def _note_early(self, part: ModulePart, moved: Iterable[torch.Tensor]) -> None:
        for parameter in moved:
            number = id(parameter)
            times = self._early[number] = self._early.get(number, 0) + 1
            if times >= _HABIT or number in part.on_trial:
                part.restless.add(number)

    def _look(self) -> dict[str, Any]:
        """All that may change between an optimizer and its commit, by what people call it."""
        seen: dict[str, Any] = {f"state.{k}": v for k, v in self._counters.items()}
        for part in self._others:
            seen[part.name] = part.owner.state_dict()
        for held in self._optimizers:
            seen[held.name] = held.hyperparameters()
        for module in self._modules:
            seen[module.name] = _Versions(_versions(module.remembered), module.buffers_now())
        return seen

    def _moved(self) -> set[str]:
        now, mark = self._look(), self._mark or {}
        moved = {name for name, value in now.items() if not _alike(value, mark.get(name, _ABSENT))}
        return moved if now.keys() == mark.keys() else moved | (mark.keys() - now.keys())


class _Versions(NamedTuple):
    parameters: list[int]
    buffers: list[tuple[int, int]]


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # a tensor that was made for inference has none, and does not change
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _alike(one: Any, other: Any) -> bool:
    """Whether two trees of plain values and tensors are the same; False if that is not known."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in _PLAIN:
        with suppress(Exception):  # there are tensors or arrays in it, which have no single answer
            if one == other:
                return True
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, torch.Tensor):
        return bool(one.device == other.device and torch.equal(one, other))
    try:
        return bool(one == other)
    except Exception:  # some values, such as arrays, have no single answer
        return False


def _few(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
