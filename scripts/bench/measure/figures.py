"""What a fault cost, computed from the steps that the workers noted.

Pure: the steps of all workers and the moment of the fault go in, the figures come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One step as one worker completed it.

    Attributes:
        at: when, in seconds on the machine's monotonic clock.
        step: its number; a step that is done again keeps its number.
        round: names the process group it was done in.
        world: how many ranks that group has.
        rank: the worker's rank in it.
    """

    at: float
    step: int
    round: int
    world: int
    rank: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a fault cost.

    Attributes:
        stall: the longest time after the fault, in seconds, without a step of the newest round
            that advances the job's highest completed step.
        full_strength: seconds from the fault to the first step of the full world; None where
            there is no way back to it.
        lost_steps: steps that had to be done again.
        rounds: rounds formed after the fault.
        stale_steps: steps that an older round went on with while a newer one trained: two groups
            on one job. 0 in a sound one.
    """

    stall: float
    full_strength: float | None
    lost_steps: int
    rounds: int
    stale_steps: int


def settled(steps: Sequence[Step], fault_at: float, world: int, enough: int) -> bool:
    """Whether a round of the full world, formed after the fault, has advanced the job enough.

    Args:
        steps: all steps noted so far, in any order.
        fault_at: the moment of the fault.
        world: how many ranks the full world has after it.
        enough: how many new steps are enough.
    """
    before = max((s.step for s in steps if s.at <= fault_at), default=-1)
    old = {s.round for s in steps if s.at <= fault_at}
    new = {s.step for s in steps if s.round not in old and s.world == world and s.step > before}
    return len(new) >= enough


def figures(steps: Iterable[Step], fault_at: float, world: int, until: float) -> Figures | None:
    """The cost of one fault.

    Args:
        steps: the steps of all workers, in any order.
        fault_at: the moment of the fault.
        world: how many ranks the full world has after it.
        until: the end of the observation; a job that stands still then is stalled until then.

    Returns:
        The figures; None if no round of the full world has advanced the job.
    """
    ordered = sorted(steps, key=lambda step: step.at)
    old = {step.round for step in ordered if step.at <= fault_at}
    begun: set[int] = set()
    redone: set[tuple[int, int]] = set()
    newest, highest, highest_before = 0, -1, -1  # the last: when the newest round began
    stall, last, stale = 0.0, fault_at, 0
    full_strength: float | None = None
    back = False
    for step in ordered:
        if step.round not in begun:
            begun.add(step.round)
            newest, highest_before = step.round, highest
        if step.round != newest:
            stale += 1
            continue
        whole = step.round not in old and step.world == world
        if whole and full_strength is None:
            full_strength = step.at - fault_at
        if step.step <= highest_before:
            redone.add((step.round, step.step))
        if step.step > highest:
            highest = step.step
            if step.at > fault_at:
                stall, last = max(stall, step.at - last), step.at
                back = back or whole
    if full_strength is None or not back:
        return None
    return Figures(
        stall=max(stall, until - last),
        full_strength=full_strength,
        lost_steps=len({(round_, step) for round_, step in redone if round_ not in old}),
        rounds=len(begun - old),
        stale_steps=stale,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values, no quantile")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
