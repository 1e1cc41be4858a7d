"""``elastic.run`` and ``State.resumed``: how a script hands over its training."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.training.run_loop import begun, train_to_end
from elastic_runtime.training.state import State, TrainingStopped
from elastic_runtime.worker.context import context
from elastic_runtime.worker.step_source import training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.worker.world import World

T = TypeVar("T")


def run(
    train: Callable[[World], T],
    state: State,
    *,
    in_place: bool = True,
    start_over: bool = False,
    strict: bool = True,
) -> T:
    """Trains, and continues when workers or nodes are lost or join.

    It connects the ranks, begins with the newest state that is saved, and calls ``train(world)``.
    When that has returned on all ranks, what ``state.at`` has asked for at the end is done, and the
    last state is saved.

    In place, whenever the world changes, ``train`` is interrupted and called again with the new
    world, in the same process and with the state of the last commit. With ``in_place=False`` the
    processes are started again instead, and begin with what is saved; models may be sharded over
    ranks then, and a process group of the script's own is used if there is one.

    Args:
        train: the training function; it is called with the ``World``, on each rank.
        state: the models, optimizers, loaders and values that must survive a fault.
        in_place: whether surviving processes go on after a fault.
        start_over: in place, what to do if more than 10 steps were committed and all of them are
            lost, because nothing was saved. False: end with an error. True: begin again at step 0.
        strict: whether a checkpoint must have exactly the keys of this program. False: keys that
            it lacks keep their present values, and keys that only it has are ignored; an event
            names both.

    Returns:
        What ``train`` has returned on this rank; None if ``state.stop()`` has left it.

    Raises:
        UsageError: it was called twice; in place, ``init_process_group`` was called before it, or
            all committed steps are lost; or an argument is of another kind.
        CheckpointUsageError: ``in_place=False``, and nothing says where the state is saved.
        Exception: whatever ``train`` raises, unless a fault of another rank has caused it.
    """
    if not callable(train):
        raise UsageError(
            f"elastic.run needs the function that trains, and this is a "
            f"{type(train).__qualname__}: elastic.run(train, state)"
        )
    saver = _saver_of(state, in_place=in_place)
    return train_to_end(
        train, state, saver, in_place=in_place, start_over=start_over, strict=strict
    )


@contextmanager
def resumed(state: State, *, strict: bool = True) -> Iterator[World]:
    """See ``State.resumed``."""
    saver = _saver_of(state, in_place=False)
    with (
        begun(state, saver, in_place=False, strict=strict) as loop,
        loop.one_world() as (_, world),
    ):
        state.begin_call()
        with training(on=True), suppress(TrainingStopped):
            yield world


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While the block runs, no step is expected: the hang time-out does not count.

    For what takes longer than ``--hang-timeout`` between two commits. It may be nested, and does
    nothing without an agent. What ``state.at`` calls needs none.

    Example::

        with elastic.busy("preparing the data"):
            prepare()

    Args:
        what: the name of this work, shown to people in events and status.
    """
    with context().busy(what):
        yield


def _saver_of(state: object, *, in_place: bool) -> Checkpointer | None:
    """What saves the state; None: nothing does.

    Raises:
        UsageError: there is no State.
        CheckpointUsageError: it must be saved, and nothing says where.
    """
    if not isinstance(state, State):
        kind = "none was given" if state is None else f"this is a {type(state).__qualname__}"
        raise UsageError(
            f"elastic.run needs the State that must not be lost, and {kind}: "
            "elastic.run(train, state)"
        )
    if state._settings is not None:
        return state._settings.saver(state.saved_parts(generators=True))
    if in_place:
        return None
    raise CheckpointUsageError(
        "in_place=False starts the processes again after a fault, and nothing is saved that they "
        'could begin with: call state.checkpoints("runs/x", every="30s") before'
    )
