"""Finds, in the first two steps, what a script trains with and has left out of its ``State``.

Without this check such a mistake would show only after the first fault, and without an error: ranks
would continue with different values. Of optimizers only what is used in both of the first two steps
counts. What is certainly wrong is an error, what is likely wrong is a hint, and what may well be
right is not reported.
"""

from __future__ import annotations

import gc
import types
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import StateLacks
from elastic_runtime.parts.wrappers import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.training.state import State

# An object that refers to more than so many others is not searched to its end.
_MOST = 200_000
# Knows its optimizer, and does not keep what that holds.
_SCHEDULE = torch.optim.lr_scheduler.LRScheduler
# What refers to much and keeps nothing for a script.
_LEAVES = (torch.Tensor, types.ModuleType, types.CodeType, types.FrameType, type)
_OWN = ("elastic_runtime.worker.", "elastic_runtime.training.", "elastic_runtime.parts.")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not in the State.

    Attributes:
        text: for people: what, what comes of it, and what to write.
        certain: it cannot be right.
    """

    text: str
    certain: bool


class MissingParts:
    """Looks on until the second commit of this process, and costs nothing after it."""

    def __init__(self, state: State) -> None:
        """Begins to look which optimizers make steps, and by which scalers.

        Args:
            state: what the script has given.
        """
        self._state = state
        self._stepped: dict[int, torch.optim.Optimizer] = {}
        self._first: dict[int, torch.optim.Optimizer] | None = None  # before the first commit
        self._scalers: dict[int, torch.amp.GradScaler] = {}
        self._hook = register_optimizer_step_post_hook(self._after_step)
        self._step_of_scaler = torch.amp.GradScaler.step
        torch.amp.GradScaler.step = self._noting_scalers(torch.amp.GradScaler.step)

    def committed(self) -> list[Finding] | None:
        """Takes note of a commit.

        Returns:
            What is missing in the State; None: it is too early to tell.
        """
        if self._first is None:
            self._first, self._stepped = self._stepped, {}
            return None
        twice = [one for key, one in self._stepped.items() if key in self._first]
        found = [_about_optimizer(self._state, optimizer) for optimizer in twice]
        found += [_about_scaler(self._state, scaler) for scaler in self._scalers.values()]
        self.close()
        return [one for one in found if one is not None]

    def close(self) -> None:
        """Looks on no more."""
        self._hook.remove()
        torch.amp.GradScaler.step = self._step_of_scaler
        self._stepped, self._first, self._scalers = {}, {}, {}

    def _noting_scalers(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def noting(scaler: torch.amp.GradScaler, *given: Any, **named: Any) -> Any:
            if scaler.is_enabled():
                self._scalers[id(scaler)] = scaler
            return step(scaler, *given, **named)

        return noting

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self._stepped[id(optimizer)] = optimizer


def report(found: Sequence[Finding], note: Callable[[NotedEvent], None]) -> None:
    """Says what is missing in the State.

    Args:
        found: what is.
        note: takes an event, once for each.

    Raises:
        UsageError: for the first that is certain.
    """
    for one in found:
        if one.certain:
            raise UsageError(one.text)
        note(StateLacks(one.text))


def _about_optimizer(state: State, optimizer: torch.optim.Optimizer) -> Finding | None:
    held = [one for one in state._named.values() if not isinstance(one, _SCHEDULE)]
    objects = [*held, *([state._alone] if state._alone is not None else ())]
    ours = [one for one in objects if isinstance(one, torch.optim.Optimizer)]
    # A wrapper may hold the optimizer that is in the State, as well as the other way round.
    if reaches(objects, optimizer) or any(reaches([optimizer], one) for one in ours):
        return None
    kind = type(optimizer).__name__
    modules = {n: unwrapped(m) for n, m in state._named.items() if isinstance(m, torch.nn.Module)}
    changed = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, module in modules.items():
        if any(id(parameter) in changed for parameter in module.parameters()):
            if not any(optimizer.state.values()):  # plain SGD, of which nothing can be lost
                return None
            return Finding(
                f"{kind} changes parameters of the State's {name!r} and is not in the State: "
                f"after a fault it would differ between workers; write State({name}=…, optim=…)",
                certain=False,
            )
    others = [o for o in objects if not type(o).__module__.startswith("elastic_runtime.")]
    return Finding(
        f"{kind} changes parameters that are not in the State: after a fault they would differ "
        "between workers; write State(model=…, optim=…)",
        certain=not others and not state.has_values,
    )


def _about_scaler(state: State, scaler: torch.amp.GradScaler) -> Finding | None:
    if reaches([*state._named.values(), state._alone], scaler):
        return None
    return Finding(
        "a GradScaler is in use and not in the State: after a fault ranks would scale otherwise, "
        "leave out other steps, and drift apart; write State(…, scaler=scaler)",
        certain=True,
    )


def reaches(roots: Sequence[object], wanted: object) -> bool:
    """Whether objects refer to another: by attributes, containers, bound methods or closures.

    Args:
        roots: where to begin.
        wanted: what to look for.

    Returns:
        True also if there is too much to search.
    """
    seen: set[int] = set()
    stack: list[Any] = list(roots)
    first = len(stack)
    while stack:
        one = stack.pop()
        if one is wanted:
            return True
        if id(one) in seen or isinstance(one, _LEAVES):
            continue
        if len(seen) >= first and type(one).__module__.startswith(_OWN):
            continue  # from a hook of an optimizer there is a way to all that the script has
        seen.add(id(one))
        if len(seen) > _MOST:
            return True
        if isinstance(one, types.FunctionType):  # its globals are those of the whole script
            stack.extend((one.__closure__, one.__defaults__, one.__kwdefaults__))
        else:
            stack.extend(gc.get_referents(one))
    return False
