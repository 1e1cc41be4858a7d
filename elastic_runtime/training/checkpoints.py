"""Where and how often a State is saved, and how it is loaded without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.manifest import newest_first
from elastic_runtime.checkpoint.load.load_run import LoadRun
from elastic_runtime.checkpoint.save.save_timetable import parse_limit
from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.retention import parse_retention
from elastic_runtime.errors import CheckpointUsageError, DamagedCheckpoint, NoCheckpoint
from elastic_runtime.parts.per_rank import RankPosition
from elastic_runtime.worker.peers import Peers

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from datetime import timedelta

    from elastic_runtime.checkpoint.save_interval import Interval
    from elastic_runtime.parts.saved_parts import SavedParts
    from elastic_runtime.training.state import State


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The arguments of ``State.checkpoints``; see there.

    Raises:
        CheckpointUsageError: one of them cannot be used.
    """

    place: str | os.PathLike[str]
    every: Interval | Sequence[Interval] | None = None
    keep: int | None = None
    keep_every: int | str | timedelta | None = None
    sync: bool = False
    snapshots: Interval | Sequence[Interval] | None = None
    on_error: Literal["continue", "raise"] = "continue"
    max_age: Interval | Sequence[Interval] | None = None

    def __post_init__(self) -> None:
        interval = parse_every(self.every)
        parse_limit(self.max_age, interval, "max_age")
        parse_retention(self.keep, self.keep_every)
        parse_every(self.snapshots, "snapshots")
        if self.on_error not in ("continue", "raise"):
            raise CheckpointUsageError(
                f"on_error={self.on_error!r} is not understood; give 'continue' or 'raise'"
            )

    def saver(self, parts: SavedParts) -> Checkpointer:
        """What saves these there.

        Args:
            parts: of the State.
        """
        return Checkpointer(
            self.place,
            parts,
            every=self.every,
            keep=self.keep,
            keep_every=self.keep_every,
            sync=self.sync,
            snapshots=self.snapshots,
            raises=self.on_error == "raise",
            max_age=self.max_age,
        )


def load(
    place: str | os.PathLike[str], state: State, *, step: int | None = None, strict: bool = True
) -> int:
    """Loads a checkpoint into the objects of a State, for an evaluation or an export.

    It needs no ``elastic.run``, and no other process: before ``elastic.run`` each rank loads for
    itself. With a process group all ranks call it.
    The global random generators are left as they are. To train on from loaded weights, load them
    into a State of their own: what is trained begins at step 0.

    Example::

        state = elastic.State(model=model)
        elastic.load("runs/digits", state, strict=False)  # the model, of all that was saved

    Args:
        place: where the checkpoints are: a path, or a URL that fsspec knows.
        state: whose objects and values are replaced.
        step: of the checkpoint; None: the newest one that is whole.
        strict: whether the checkpoint must have exactly the objects of the State. False: what it
            lacks stays as it is, and what only it has is left out.

    Returns:
        The step at which it was saved, which is that of the State now.

    Raises:
        NoCheckpoint: there is none, or none of that step.
        CheckpointUsageError: it does not fit.
        DamagedCheckpoint: it is not what was written; without ``step`` there is none that is.
    """
    storage = open_storage(place)
    peers = Peers(alone=True)
    # As rank 0 sees them: ranks that read different checkpoints would not notice it.
    names = peers.on_first(
        lambda: [one.name for one in newest_first(storage.names()) if storage.has_manifest(one)]
    )
    whole = newest_first(names)
    wanted = [one for one in whole if step is None or one.step == step]
    if not wanted:
        there = ", ".join(str(one.step) for one in whole) or "none"
        what = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        raise NoCheckpoint(f"there is not {what} in {storage.where}; steps there: {there}")
    parts = state.saved_parts(generators=False)
    damage: DamagedCheckpoint | None = None
    for which in wanted:
        run = LoadRun(storage, which, parts, RankPosition(peers.rank, peers.world), strict=strict)
        try:
            run.run(peers)
        except DamagedCheckpoint as error:
            damage = damage or error
            continue
        state.resumed_at(which.step)
        return which.step
    assert damage is not None
    raise damage
