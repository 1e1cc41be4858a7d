"""The loop of a trainer as one job of ``elastic.run``, in place or by restarts.

A trainer brings its own loop, and its own objects that must not be lost. Here they become a
``State`` and the function that ``elastic.run`` calls, in each world anew or once in a process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import elastic_runtime as elastic
from elastic_runtime.checkpoint.save_interval import parse_every
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from elastic_runtime.trainers.rank_notes import RankNotes
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How a trainer's job is saved and goes on.

    Attributes:
        every, keep, snapshots: see ``State.checkpoints``.
        global_batch: samples in a batch over all ranks; None: it is decided by the adapter.
        shadow: see ``State``; None: where it is needed.
        parts: the user's further objects, by name.
        start_over: see ``elastic.run``.
    """

    every: Any = "30s"
    keep: int | None = 3
    snapshots: Any = None
    global_batch: int | None = None
    shadow: bool | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    start_over: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be, before a job is started for it.

        Raises:
            UsageError: a setting makes no sense.
        """
        parse_every(self.every)
        parse_every(self.snapshots, "snapshots")
        if self.global_batch is not None and self.global_batch < 1:
            raise UsageError(f"global_batch={self.global_batch}: give at least one sample")

    def with_parts(self, own: dict[str, Any]) -> dict[str, Any]:
        """All that must not be lost, by name.

        Args:
            own: what the trainer itself has.

        Raises:
            UsageError: the user has given one of these names to something else.
        """
        if taken := sorted(own.keys() & self.parts.keys()):
            raise UsageError(f"parts= has the name {taken[0]!r}, which is taken; take another one")
        return {**own, **self.parts}


class TrainerJob:
    """What a trainer trains, from its first step to its last one.

    Attributes:
        state: counts the steps.
    """

    def __init__(
        self,
        parts: dict[str, Any],
        notes: RankNotes,
        settings: JobSettings,
        place: str | os.PathLike[str] | None,
        *,
        shadow: bool = False,
    ) -> None:
        """Nothing is connected, read or written before ``run``.

        Args:
            parts: what is the same on all ranks, by name.
            notes: what each rank has noted.
            settings: how the job is saved.
            place: of its checkpoints; None: nothing is to stay.
            shadow: see ``State``.

        Raises:
            UsageError: a part cannot be kept, or has a name of a State's own.
        """
        self.state: State = elastic.State(shadow=shadow, **parts)
        self.state.lend_to_trainer(notes)
        self._notes, self._settings = notes, settings
        self._in_place = True
        self._saves = place is not None
        if place is not None:
            self.state.checkpoints(
                place, every=settings.every, keep=settings.keep, snapshots=settings.snapshots
            )

    def run(self, train: Callable[[World], None], *, in_place: bool) -> None:
        """Trains to the end.

        Args:
            train: trains from where the state is, in a world whose ranks are connected; in place it
                is called in one world after the other.
            in_place: survivors of a fault go on in their processes.
        """

        self._in_place = in_place

        def with_notes(world: World) -> None:
            self._notes.enter(self.state.step)
            train(world)

        elastic.run(with_notes, self.state, in_place=in_place, start_over=self._settings.start_over)

    def commit(self) -> None:
        """A step is complete; the round, or this process, may end here.

        Raises:
            WorldChanged: the round does.
            SystemExit: the job was asked to stop, and has saved.
        """
        if self._in_place:
            self._notes.note(self.state.step + 1)
        self.state.commit()

    def save(self) -> None:
        """Saves the last step."""
        if self._saves:
            self.state.save()
