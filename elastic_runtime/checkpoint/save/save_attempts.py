"""When the state of a job is saved, and what follows if that fails.

``timetable`` decides, ``saves`` saves; this is what lies between. Every method but ``wishes_save``
is called by all ranks at the same step, and does the same on all of them, also after a failure: the
ranks hear of each one together.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.save.background_thread import told
from elastic_runtime.checkpoint.save_interval import Every
from elastic_runtime.errors import CheckpointFailed, SaveOverdue

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.save.save_scheduler import Saves
    from elastic_runtime.checkpoint.save.save_timetable import Timetable
    from elastic_runtime.worker.peers import Peers

# Seconds that a save which is due waits for the one before: the first time, and once it is put off.
_PATIENCE = 5.0
_MOMENT = 0.1


class Attempts:
    """The saves of a job, those that fail among them.

    Attributes:
        begun: the step of the last save that was not in vain; None: there is none, or the ranks
            may not all know of it.
    """

    def __init__(self, saves: Saves, timetable: Timetable, *, sync: bool, raises: bool) -> None:
        """Takes the settings.

        Args:
            saves: saves.
            timetable: says when.
            sync: no save is done in the background.
            raises: each failure is an error.
        """
        self._saves = saves
        self._timetable = timetable
        self._sync = sync
        self._raises = raises
        self._prepared = False
        self.begun: int | None = None

    # The world

    def enter(self, *, lost: bool) -> None:
        """The ranks are others from now on.

        Args:
            lost: a save was under way, and is not finished now.
        """
        # What this rank knows to be saved, others may not have heard of: all must do the same.
        self.begun = None
        self._prepared = False
        self._timetable = self._timetable.enter(time.monotonic(), lost=lost)

    def resumed(self, step: int, *, stored: bool) -> None:
        """The job goes on from a state that was saved.

        Args:
            step: of the state.
            stored: it is in storage, and not in memory only.
        """
        self.begun = step if stored else None
        self._timetable = self._timetable.resumed(time.monotonic(), step)

    def go_back(self) -> None:
        """The job has gone back to an earlier step."""
        self.begun = None
        self._saves.tenure.go_back()

    def look(self, peers: Peers, step: int) -> None:
        """Finds out before any work is done whether there is a place to save to.

        Raises:
            CheckpointUsageError: this job may not save there.
            CheckpointFailed: it cannot at present, and the user wants to hear of that.
        """
        if self._timetable.every == Every():
            return  # the first save looks
        tenure = self._saves.tenure

        def look() -> None:
            if not tenure.seen:  # a storage that hangs later holds up saves, and no new round
                tenure.look()

        try:
            peers.on_first(told(look))
        except CheckpointFailed as error:
            self._saves.tell_failure(peers, step, error)
            if self._raises:
                raise
        tenure.seen = True

    # Saving

    def wishes_save(self, peers: Peers) -> bool:
        """Whether this rank, which is rank 0, is to ask all ranks for a save."""
        if not self._timetable.wish(time.monotonic(), ready=self._sync or self._prepared):
            return False
        self._saves.leave_behind()
        if late := self._saves.under_way:
            if late[0] >= _PATIENCE:
                self._saves.tell_late(peers, *late)
            return False
        self._timetable = self._timetable.asked()
        return True

    def heed(self, peers: Peers, step: int, *, failed: bool, agreed: bool) -> bool:
        """Does what follows from a step; whether that was to save.

        Args:
            peers: all ranks.
            step: that was just made.
            failed: a save in the background has failed on some rank.
            agreed: the ranks have agreed to save.

        Raises:
            CheckpointError: see ``Checkpointer.step``.
        """
        if failed:
            self.hear(peers, step)
        if agreed or self._timetable.due_at(step):
            if self.begun != step and self._may_begin(peers) and self.hear(peers, step):
                self._save_due(peers, step)
            return True
        if not self._prepared:
            self._prepare(peers, step)
        return False

    def _may_begin(self, peers: Peers) -> bool:
        """Whether no rank has a save under way; otherwise this one is put off.

        A storage may take minutes for a write, or never end it. Training does not wait for that,
        and no restart would help: whoever waits there cannot even be killed.
        """
        if self._sync:
            return True
        self._saves.leave_behind()
        patience = _MOMENT if self._timetable.pausing else _PATIENCE
        under_way = peers.on_each(lambda: self._saves.under_way_after(patience))
        late = max((one for one in under_way if one), default=None)
        if late is None:
            return True
        self._timetable = self._timetable.put_off(time.monotonic())
        self._saves.tell_late(peers, *late)
        return False

    def _save_due(self, peers: Peers, step: int) -> None:
        self.begun = None
        try:
            if self._sync:
                self._saves.save_now(peers, step)
            else:
                self._saves.save_beside(peers, step)
                self._prepared = True
        except CheckpointFailed as error:
            self._bear(peers, step, error)
        else:
            self._begin(step)

    def save_soon(self, peers: Peers, step: int) -> None:
        """Saves in the background because the user says so, whatever has failed before."""
        self.hear(peers, step)
        self._save_due(peers, step)

    def save_for_certain(self, peers: Peers, step: int) -> None:
        """Saves, and returns when that is durable; tries several times.

        Raises:
            CheckpointFailed: it was in vain.
        """
        self._saves.finish_flight()
        if self.begun == step and self._saves.held == step:
            return
        self.begun = None
        try:
            self._saves.persist(lambda: self._saves.save_now(peers, step))
        except CheckpointFailed as error:
            raise CheckpointFailed(f"step {step} is not saved: {error}") from error
        self._begin(step)

    def wait(self) -> None:
        """Waits for the save in the background; if it fails, tries several times.

        Raises:
            CheckpointFailed: it was in vain.
        """
        try:
            self._saves.finish()
        except Exception:
            self.begun = None
            raise

    def _begin(self, step: int) -> None:
        self.begun = step
        self._timetable = self._timetable.begin(time.monotonic())

    def _prepare(self, peers: Peers, step: int) -> None:
        """Takes the memory that a save will need, beside training, after the first step."""
        # An optimizer has no state before.
        self._prepared = True
        if self._sync or self._timetable.every == Every():
            return
        try:
            self._saves.warm_up(peers, step)
        except CheckpointFailed as error:
            self._bear(peers, step, error)

    # Failures

    def hear(self, peers: Peers, step: int) -> bool:
        """Waits for the save in the background; False if it has failed, and that is borne.

        Raises:
            CheckpointError: it cannot be borne.
        """
        try:
            self._saves.wait()
        except CheckpointFailed as error:
            self._bear(peers, step, error)
            return False
        return True

    def _bear(self, peers: Peers, step: int, error: CheckpointFailed) -> None:
        """Lets training go on after a failed save.

        Raises:
            SaveOverdue: no save has succeeded for too long.
            CheckpointFailed: the user wants to hear of each one.
        """
        self.begun = None
        now = time.monotonic()
        self._timetable = self._timetable.fail(now, step, self._saves.last_whole)
        if self._raises:
            raise error

        def judge() -> None:  # by the clock of rank 0
            if why := self._timetable.overdue(now, step):
                raise SaveOverdue(f"{why}; the last time: {error}")

        peers.on_first(judge)
