"""Checks of how a script uses its checkpointer, and the errors that say what to write instead."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import NoReturn

from elastic_runtime.errors import CheckpointUsageError, UsageError


def check_arguments(entries: object, on_save_error: object) -> None:
    """Refuses arguments of a ``Checkpointer`` that are of another kind than it needs.

    Args:
        entries: must be a dict whose keys are strings.
        on_save_error: must be one of the two words that are known.

    Raises:
        CheckpointUsageError: one of them cannot be used.
    """
    if not isinstance(entries, MutableMapping):
        _refuse_entries(f"this is a {type(entries).__name__}")
    for name in entries:
        if not isinstance(name, str):
            _refuse_entries(f"{name!r} is none")
    if on_save_error not in ("continue", "raise"):
        raise CheckpointUsageError(
            f"on_save_error={on_save_error!r} is not understood; give 'continue' or 'raise'"
        )


def _refuse_entries(why: str) -> NoReturn:
    raise CheckpointUsageError(
        f"the entries of a Checkpointer go by name, and {why}; "
        'give a dict such as {"model": model, "optim": optim}'
    )


def refuse_uncounted() -> NoReturn:
    """Refuses a second save of step 0: the state may have changed without being counted.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "save() was called again at step 0: call step() after each step, or set steps; "
        "a checkpoint is of a step, and each step is saved once"
    )


def refuse_in_place(what: str, where: str) -> NoReturn:
    """Refuses a call that ``elastic.run`` makes itself on the checkpointer that it uses.

    A step that is counted twice moves each sampler twice, and half of the data is skipped.

    Args:
        what: what the script has done, such as "step() was called".
        where: the place of the checkpoints.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"{what} on the checkpointer of {where}, which elastic.run was given: elastic.run counts, "
        "loads and saves itself; remove it. Only save() may be called, inside train"
    )


def refuse_beside(where: str) -> NoReturn:
    """Refuses a checkpointer that is used inside of ``elastic.run`` but was not given to it.

    It would not notice a change of the world: surviving ranks would use groups that are gone, and
    new ranks would make new ones, with other steps and other plans for the same saves.

    Args:
        where: the place of the checkpoints.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"the checkpointer of {where} was used inside of elastic.run, which was not given it, and "
        "so it would not survive a change of the world: give this one to "
        "elastic.run(train, state, checkpointer). To keep a further copy, such as the best model "
        "so far, let rank 0 save it, as each rank has the whole model: "
        "torch.save(model.state_dict(), path) if world.rank == 0"
    )


def refuse_late(step: int, where: str) -> NoReturn:
    """Refuses a save after the end of ``elastic.run``, when the ranks have no groups any longer.

    Args:
        step: the step of the state.
        where: the place of the checkpoints.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"save() was called after elastic.run, when the ranks are no longer connected, and step "
        f"{step} is not saved in {where}: call save() inside train, on all ranks, before it returns"
    )
