"""Settings that will harm a job later, reported once while they can be changed: pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointResumed,
    CheckpointSaved,
    CheckpointSaveFailed,
    CheckpointUnreachable,
)
from elastic_runtime.events.state_events import DataShuffles, StateLacks
from elastic_runtime.limits import NO_CHECKPOINT_HINT

if TYPE_CHECKING:
    from elastic_runtime.events import Event

# What each machine has for itself, and what does not outlive it.
_OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job.

    Attributes:
        min_nodes, max_nodes, max_restarts: as it was started.
        machines: on how many its nodes are at present.
        seconds: since when this node is in it.
        counts: its workers report steps, so that it uses this package to keep them.
        saves: it has saved a checkpoint, or resumed from one.
        place: where its checkpoints are; "": unknown.
        shuffles: the sampler of a DataLoader that knows one world only; "": none was seen.
        lacks: what a worker has said of something that is not in its State.
    """

    min_nodes: int
    max_nodes: int
    max_restarts: int
    machines: int = 1
    seconds: float = 0.0
    counts: bool = False
    saves: bool = False
    place: str = ""
    shuffles: str = ""
    lacks: str = ""

    def heard(self, event: Event) -> Facts:
        """What is known after an event of a worker."""
        match event:
            case DataShuffles():
                return replace(self, shuffles=event.sampler)
            case StateLacks():
                return replace(self, lacks=event.problem)
            case CheckpointCommitted():
                return replace(self, saves=True)
            case CheckpointSaved() | CheckpointResumed():
                return replace(self, saves=True, place=event.path or self.place)
            case CheckpointSaveFailed() | CheckpointUnreachable():
                return replace(self, place=event.path or self.place)
            case _:
                return self


def hints(facts: Facts) -> dict[str, str]:
    """What is plainly wrong for what the job wants, one line each, by what it is about."""
    found = {}
    resizes = facts.min_nodes < facts.max_nodes
    if resizes and not facts.max_restarts:
        found["max-restarts"] = (
            f"nodes may go and come (--min {facts.min_nodes}, --max {facts.max_nodes}), and with "
            "--max-restarts 0 the first error of the script ends the job; lost nodes and killed "
            "workers are not counted, errors are"
        )
    if facts.machines > 1 and facts.place and _is_own(facts.place):
        found["checkpoint-place"] = (
            f"checkpoints are in {facts.place}, which each of the {facts.machines} machines has "
            "for itself: give the Checkpointer a directory that all of them see"
        )
    if facts.counts and not facts.saves and facts.seconds > NO_CHECKPOINT_HINT:
        found["no-checkpoint"] = (
            f"no checkpoint in {facts.seconds / 3600:.0f} h: if all workers end, all steps are "
            "lost; give the job a Checkpointer with every=..."
        )
    if resizes and facts.shuffles:
        found["sampler"] = (
            f"a DataLoader takes its order from {facts.shuffles}, which starts from the "
            "beginning with each change of the world, so that samples count twice or not at all: "
            "ElasticBatchSampler keeps the position"
        )
    if facts.lacks:
        found["state"] = facts.lacks
    return found


def _is_own(place: str) -> bool:
    # An object store has a scheme, and no directory of this machine.
    path = os.path.normpath(place)
    return any(path == own or path.startswith(f"{own}{os.sep}") for own in _OWN_PLACES)
