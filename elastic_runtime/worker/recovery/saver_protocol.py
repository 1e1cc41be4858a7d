"""``Saver``: the methods that ``elastic.run`` calls on a checkpointer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elastic_runtime.worker.agreement import Wish
    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice, StateVersion
    from elastic_runtime.worker.state.training_state import State


class Saver(Protocol):
    """What the loop wants of a checkpointer."""

    def count(self, steps: int) -> None:
        """So many steps are committed now: what is saved is the state after them."""

    def attach(self, state: State, gloo: GlooGroups) -> None:
        """Works with these ranks from now on, until it is attached to others."""

    def detach(self) -> None:
        """There are no ranks any more: ``elastic.run`` is over."""

    @property
    def saved_step(self) -> int:
        """The step that is saved for certain, as far as this rank knows; 0: it knows of none."""

    @property
    def term(self) -> int:
        """The newest term in which this rank's state was saved, or was about to be; 0: none."""

    @property
    def base(self) -> StateVersion:
        """The newest save that this rank's memory is known not to be older than."""

    def load(self, over: StateVersion | None, *, strict: bool = True) -> StateVersion | None:
        """Loads the newest state that is saved, on all ranks.

        Args:
            over: what all ranks hold in memory: only something newer than that is loaded, and
                nothing is touched before it is known to be whole. None: they hold nothing.
            strict: whether it must have exactly the keys of this program.

        Returns:
            What was loaded; None: there is nothing (newer), and everything is as it was.
        """

    def newest(self) -> StateVersion | None:
        """The newest that is stored, as far as names tell; asked for by one rank."""

    def received(self, choice: RecoveryChoice) -> None:
        """This rank has the memory of the sources now; ``recovered`` may still fail to come."""

    def recovered(self, choice: RecoveryChoice) -> None:
        """All ranks are alike now, and go on from there."""

    def wishes(self) -> Wish:
        """What this rank asks all ranks to do: to save, or to hear that a save has failed."""

    def act_on(self, agreed: Wish) -> None:
        """Called after each commit, on all ranks: saves if that is agreed on, or due."""

    def save(self, *, sync: bool = False) -> None:
        """Saves the present state, on all ranks; with ``sync`` it is durable on return."""

    def wait(self) -> None:
        """Waits for the save in the background, on all ranks, and raises if it fails for good."""
