"""When the state of a job is saved, and what follows if that fails.

``save_timetable`` decides, ``save_executor`` saves; this is what lies between. Every method but
``wishes_save`` is called by all ranks at the same step, and does the same on all of them, also
after a failure: all ranks learn of each one at the same time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elastic_runtime.checkpoint.save.background_thread import failing_for_all
from elastic_runtime.checkpoint.save_interval import Every
from elastic_runtime.errors import CheckpointFailed, SaveOverdue
from elastic_runtime.events.checkpoint_events import CheckpointEndsUnsaved
from elastic_runtime.limits import PREVIOUS_SAVE_TIMEOUT, PREVIOUS_SAVE_TIMEOUT_AGAIN
from elastic_runtime.worker.agreement import Foreseen

if TYPE_CHECKING:
    from elastic_runtime.checkpoint.save.save_executor import SaveExecutor
    from elastic_runtime.checkpoint.save.save_timetable import SaveTimetable
    from elastic_runtime.worker.peers import Peers


class SaveScheduler:
    """Has the state saved when that is due, and decides what a failure leads to.

    Attributes:
        begun: the step of the last save that did not fail; None: there is none, or the ranks
            may not all know of it.
    """

    def __init__(
        self, executor: SaveExecutor, timetable: SaveTimetable, *, sync: bool, raises: bool
    ) -> None:
        """Takes the settings.

        Args:
            executor: saves.
            timetable: says when.
            sync: no save is done in the background.
            raises: each failure is an error.
        """
        self._executor = executor
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
        # What this rank knows to be saved, others may not know: all must do the same.
        self.begun = None
        self._prepared = False
        self._timetable = self._timetable.enter(time.monotonic(), lost=lost)

    def resumed(self, step: int, *, stored: bool) -> None:
        """The job continues from a state that was saved.

        Args:
            step: of the state.
            stored: it is in storage, and not in memory only.
        """
        self.begun = step if stored else None
        self._timetable = self._timetable.resumed(time.monotonic(), step)

    def go_back(self) -> None:
        """The job has gone back to an earlier step."""
        self.begun = None
        self._executor.term.go_back()

    def check_place(self, peers: Peers, step: int) -> None:
        """Finds out before any work is done whether there is a place to save to.

        Raises:
            CheckpointUsageError: this job may not save there.
            CheckpointFailed: it cannot at present, and the user wants to know.
        """
        if self._timetable.every == Every():
            return  # the first save looks
        term = self._executor.term

        def check_once() -> None:
            # A storage that hangs later must delay saves only, not a new round.
            if not term.place_checked:
                term.check_place()

        try:
            peers.on_first(failing_for_all(check_once))
        except CheckpointFailed as error:
            self._executor.target.report_failure(peers, step, error)
            if self._raises:
                raise
        term.place_checked = True

    # Saving

    def wishes_save(self, peers: Peers) -> bool:
        """Whether this rank, which is rank 0, is to ask all ranks for a save."""
        if not self._timetable.wish(time.monotonic(), ready=self._sync or self._prepared):
            return False
        self._executor.leave_behind()
        if late := self._executor.under_way:
            if late[0] >= PREVIOUS_SAVE_TIMEOUT:
                self._executor.report_late(peers, *late)
            return False
        self._timetable = self._timetable.asked()
        return True

    def foreseen(self) -> Foreseen:
        """When this rank, which is rank 0, will ask all ranks for a save."""
        return Foreseen(seconds=self._timetable.due_in(time.monotonic()))

    def act_on(self, peers: Peers, step: int, *, failed: bool, agreed: bool) -> bool:
        """Does what the ranks agreed on at a step.

        Args:
            peers: all ranks.
            step: that was just made.
            failed: a save in the background has failed on some rank.
            agreed: the ranks have agreed to save.

        Raises:
            CheckpointError: see ``Checkpointer.act_on``.
        """
        if failed:
            self.collect_result(peers, step)
        if agreed or self._timetable.due_at(step):
            if self.begun != step and self._may_begin(peers) and self.collect_result(peers, step):
                self._save_due(peers, step)
            return True
        if not self._prepared:
            self._prepare(peers, step)
        return False

    def _may_begin(self, peers: Peers) -> bool:
        """Whether no rank has a save running; otherwise the next save is put off.

        A storage may take minutes for a write, or never finish it. Training does not wait for that.
        A restart would not help: a process that waits in such a write cannot even be killed.
        """
        if self._sync:
            return True
        self._executor.leave_behind()
        patience = PREVIOUS_SAVE_TIMEOUT_AGAIN if self._timetable.pausing else PREVIOUS_SAVE_TIMEOUT
        under_way = peers.on_each(lambda: self._executor.under_way_after(patience))
        late = max((one for one in under_way if one), default=None)
        if late is None:
            return True
        self._timetable = self._timetable.put_off(time.monotonic())
        self._executor.report_late(peers, *late)
        return False

    def _save_due(self, peers: Peers, step: int) -> None:
        self.begun = None
        try:
            if self._sync:
                self._executor.save_now(peers, step)
            else:
                self._executor.save_in_background(peers, step)
                self._prepared = True
        except CheckpointFailed as error:
            self._tolerate(peers, step, error)
        else:
            self._begin(step)

    def save_soon(self, peers: Peers, step: int) -> None:
        """Saves in the background because the user says so, whatever has failed before."""
        self.collect_result(peers, step)
        self._save_due(peers, step)

    def save_for_certain(self, peers: Peers, step: int) -> None:
        """Saves, and returns when that is durable; tries several times.

        Raises:
            CheckpointFailed: it failed.
        """
        self._executor.ignore_result()
        if self.begun == step and self._executor.saved_step == step:
            return
        self.begun = None
        try:
            self._executor.persist(lambda: self._executor.save_now(peers, step))
        except CheckpointFailed as error:
            raise CheckpointFailed(f"step {step} is not saved: {error}") from error
        self._begin(step)

    def wait(self) -> None:
        """Waits for the save in the background; if it fails, tries several times.

        Raises:
            CheckpointFailed: it failed.
        """
        try:
            self._executor.finish()
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
            self._executor.warm_up(peers, step)
        except CheckpointFailed as error:
            self._tolerate(peers, step, error)

    # Failures

    def report_end(self, step: int) -> None:
        """Says so, on rank 0, if training ends and the last saves have failed.

        Args:
            step: at which it ends.
        """
        target, failures = self._executor.target, self._timetable.failures
        if target.context.rank or not self._timetable.failed_last(target.term.last_saved):
            return
        saved = self._executor.saved_step
        what = "nothing is saved" if saved is None else f"only step {saved} is saved"
        many = "the last save" if failures == 1 else f"the last {failures} saves"
        problem = f"training ends at step {step} and {what}: {many} failed"
        target.context.note(CheckpointEndsUnsaved(target.storage.where, step, problem))

    def collect_result(self, peers: Peers, step: int) -> bool:
        """Waits for the save in the background; False if it has failed and training continues.

        Raises:
            CheckpointError: it has failed, and training must not continue.
        """
        try:
            self._executor.wait()
        except CheckpointFailed as error:
            self._tolerate(peers, step, error)
            return False
        return True

    def _tolerate(self, peers: Peers, step: int, error: CheckpointFailed) -> None:
        """Lets training continue after a failed save.

        Raises:
            SaveOverdue: no save has succeeded for too long.
            CheckpointFailed: the user has asked for an error at each failure.
        """
        self.begun = None
        now = time.monotonic()
        self._timetable = self._timetable.fail(now, step, self._executor.term.last_saved)
        if self._raises:
            raise error

        def check_overdue() -> None:  # by the clock of rank 0
            if why := self._timetable.overdue(now, step):
                raise SaveOverdue(f"{why}; the last time: {error}")

        peers.on_first(check_overdue)
