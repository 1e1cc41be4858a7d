"""``Saver``: the methods that ``elastic.run`` calls on a checkpointer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.agreement import Foreseen, Wish
    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.recovery.recovery_source import RecoveryChoice, StateVersion


class Saver(Protocol):
    """The methods of a checkpointer that the run loop uses."""

    def count(self, steps: int) -> None:
        """Sets the number of committed steps, under which the state is saved."""

    def attach(self, state: State, gloo: GlooGroups) -> None:
        """Saves and loads on these ranks from now on, until the next call."""

    def detach(self) -> None:
        """Ends the use: ``elastic.run`` is over, and all groups have ended."""

    @property
    def saved_step(self) -> int:
        """The newest step that this rank knows to be durable in storage; 0 if it knows of none."""

    @property
    def term(self) -> int:
        """The newest term in which this rank's state was saved, or was about to be; 0: none."""

    @property
    def base(self) -> StateVersion:
        """A save that this rank's memory is known to contain."""

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
        """The newest version in storage that has a manifest; one rank may ask alone."""

    def received(self, choice: RecoveryChoice) -> None:
        """Notes that this rank has received the state; ``recovered`` may still not follow."""

    def recovered(self, choice: RecoveryChoice) -> None:
        """Notes that all ranks have the same state now, and continue from it."""

    def wishes(self) -> Wish:
        """What this rank asks all ranks to do: to save, or to hear that a save has failed."""

    def foreseen(self) -> Foreseen:
        """When this rank will wish something, as far as it knows that."""

    def act_on(self, agreed: Wish) -> bool:
        """Called on all ranks after each commit: saves if all agreed on it, or if it is due.

        Returns:
            Whether a save was due, which takes a while.
        """

    def save(self, *, sync: bool = False) -> None:
        """Saves the present state, on all ranks; with ``sync`` it is durable on return."""

    def save_anew(self) -> None:
        """Saves the present step for certain, in the place of what is saved of it."""

    def wait(self) -> None:
        """Waits for the save in the background, on all ranks; raises if all tries have failed."""
