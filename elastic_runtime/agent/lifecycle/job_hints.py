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
from elastic_runtime.events.state_events import DataShuffles, StateLacks, TrainerUnadapted
from elastic_runtime.limits import NO_CHECKPOINT_HINT

if TYPE_CHECKING:
    from elastic_runtime.events import Event

# What each machine has for itself, and what does not outlive it.
_OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")

# What a trainer's own way to go on does after a fault, as it was measured, and what mends it.
_OF_TRAINERS = {
    "Lightning": (
        "Lightning's Trainer goes on in the middle of an epoch with a loader that begins anew: "
        "after each restart samples count twice or not at all. Trainer(strategy=ElasticStrategy()) "
        "or callbacks=[ElasticCallback(…)] of elastic_runtime.lightning mend it (docs/lightning.md)"
    ),
    "transformers": (
        "with another number of workers the Trainer's resume_from_checkpoint goes on in the wrong "
        "epoch and with another global batch. ElasticTrainer or ElasticMixin of "
        "elastic_runtime.transformers mend it (docs/transformers.md)"
    ),
    "Accelerate": (
        "accelerate's skip_first_batches after a restart skips samples of another order than was "
        "trained, so that some count twice and others not at all. fresh_accelerator() of "
        "elastic_runtime.accelerate mends it (docs/accelerate.md)"
    ),
    "torchtitan": (
        "torchtitan's loader and global batch are for one number of ranks: after a change of the "
        "world it ends with an error. --module elastic_runtime.torchtitan, or elastic(config) "
        "there, mends it (docs/torchtitan.md)"
    ),
}
_WRONG_IN_ANY_WORLD = ("Lightning", "Accelerate")

_ALONE = (
    "rank 0 trains without the other workers of the job: it seems that each of them trains by "
    "itself, and all on the same samples. "
)
_TOGETHER = {
    "": "Have the script call torch.distributed.init_process_group, or train with elastic.run",
    "transformers": "Without GPUs, TrainingArguments needs use_cpu=True",
    "Lightning": (
        "Give Trainer(strategy=ElasticStrategy()) of elastic_runtime.lightning, or else "
        "num_nodes= and devices= as they are"
    ),
    "Accelerate": "Without GPUs, Accelerator() needs cpu=True; fresh_accelerator() gives it",
}


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
        resized: its world has changed since this node is in it.
        lacks: what a worker has said of something that is not in its State.
        trainer: whose steps are not reported; "": none's that there is an adapter for.
        alone: a worker trains without the others that there are.
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
    resized: bool = False
    lacks: str = ""
    trainer: str = ""
    alone: bool = False

    def heard(self, event: Event) -> Facts:
        """What is known after an event of a worker."""
        match event:
            case DataShuffles():
                return replace(self, shuffles=event.sampler)
            case StateLacks():
                return replace(self, lacks=event.problem)
            case TrainerUnadapted():
                return replace(self, trainer=event.trainer, alone=event.alone)
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
            "for itself: give state.checkpoints(...) a directory that all of them see"
        )
    if facts.counts and not facts.saves and facts.seconds > NO_CHECKPOINT_HINT:
        found["no-checkpoint"] = (
            f"no checkpoint in {facts.seconds / 3600:.0f} h: if all workers end, all steps are "
            'lost; call state.checkpoints(place, every="5m")'
        )
    # A loop with a State begins its order anew after each fault as well.
    if facts.shuffles and (facts.counts or facts.resized):
        found["sampler"] = (
            f"a DataLoader takes its order from {facts.shuffles}, which starts from the "
            "beginning after each fault and each change of the world, so that samples count twice "
            "or not at all: elastic.DataLoader keeps the position"
        )
    if facts.lacks:
        found["state"] = facts.lacks
    if facts.trainer in _OF_TRAINERS and (resizes or facts.trainer in _WRONG_IN_ANY_WORLD):
        found["trainer"] = _OF_TRAINERS[facts.trainer]
    if facts.alone:
        found["alone"] = _ALONE + _TOGETHER.get(facts.trainer, _TOGETHER[""])
    return found


def _is_own(place: str) -> bool:
    # An object store has a scheme, and no directory of this machine.
    path = os.path.normpath(place)
    return any(path == own or path.startswith(f"{own}{os.sep}") for own in _OWN_PLACES)
