"""What a loop very likely does not mean: told once, by rank 0, from types and counters.

A hint is no error: what it names may be meant.
"""

from __future__ import annotations

from elastic_runtime.events.state_events import LoopHint
from elastic_runtime.worker.context import context

_told: set[str] = set()

SCHEDULE_LATE = (
    "a schedule of the State was stepped between commit() and the next step: a fault loses that "
    "step of it; step it before state.commit()"
)
BUFFERS_IN_DUTY = (
    "buffers of a model changed in {what!r}, such as the statistics of a normalization, and are "
    "trained on from here: call model.eval() there, the mode before comes back by itself"
)
OTHER_BATCH = (
    "a step had {before} samples when the state was saved, and has {now} now: a learning rate or "
    "a schedule that was made for the other may not fit"
)
LOOSE_LOADER = (
    "a loader that is not in the State gives the steps: after a fault it begins anew, and the same "
    "samples count again; write State(…, loader=loader)"
)
SCHEDULE_LEFT_OUT = (
    "a schedule changes the learning rates of {name!r} and is not in the State: after a fault it "
    "begins anew, and ranks differ; write State(…, schedule=schedule)"
)
VALUES_DIFFER = (
    "plain values of the State differ between ranks at a commit: after a fault all have those of "
    "one; set the same on all ranks, set them in what state.at(...) calls, or keep what each rank "
    "has for itself in elastic.PerRank"
)
PIECE_OF_ONE = (
    "where {world} workers share a step of {samples} samples, a worker gets one sample at a time, "
    "and BatchNorm1d cannot be trained with one: leave such a step out with drop_last=True, or "
    "choose another global_batch_size or at_once"
)
NOTHING_LEFT = (
    "training was over before it began, at step {step}, and nothing was trained: for more steps "
    "raise what ends the loop, such as steps(epochs=...); to begin anew, name another place"
)
STOPPED_BEFORE = (
    "state.stop() has ended this training at step {step}, for good, and nothing was trained: to "
    "begin anew, name another place"
)
GRADIENTS_LEFT = (
    "a step was committed for which no optimizer has made a step, and its gradients are still "
    "there: its samples count as trained, and where the world changes the gradients are lost; for "
    "a larger batch raise global_batch_size, and set at_once, which cuts a step into pieces; to "
    "leave a step out, call zero_grad() before commit()"
)
STEPS_TOGETHER = (
    "{steps} steps of a loader were committed together and count as one, so that step.number comes "
    "again: decide by nothing that follows from it; for a larger batch raise global_batch_size, "
    "and set at_once, which cuts a step into pieces"
)
LOOPS_IN_A_ROW = (
    "a loop over steps() had nothing left to give, and another one follows it: what the script "
    "does after the first, such as an evaluation of that epoch, is done again after each change of "
    "the world, with the weights of that moment; put it into state.at('epoch', ...)"
)
COMMIT_TWICE = (
    "commit() was called twice with no optimizer and no step of a loader in between: each commit "
    "counts a step"
)
OPTIMIZER_LATE = (
    "an optimizer of the State made its step after commit(), with no step of a loader begun: its "
    "commit did not have it, and a fault loses it; call state.commit() after optimizer.step()"
)
BREAK_IN_PIECES = (
    "the loop over the pieces of a step was left after {taken} of {pieces}: the rest of its "
    "samples counts as trained; to leave out a step, call zero_grad() and commit()"
)


def tell_once(hint: str, **words: object) -> None:
    """Tells people one of the sentences above, the first time that it is so in this process."""
    here = context()
    if hint not in _told and here.rank == 0:
        _told.add(hint)
        here.note(LoopHint(hint.format(**words)))
