"""What a script asks of a checkpointer that can only go wrong, and what it is told instead."""

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
    """Refuses a second save of step 0, of which nobody knows whether it is the same state.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "save() was called again at step 0: call step() after each step, or set steps; "
        "a checkpoint is of a step, and each step is saved once"
    )


def refuse_in_place(what: str, where: str) -> NoReturn:
    """Refuses what ``elastic.run`` does itself with the checkpointer that it was given.

    A step that both count moves each sampler twice, and half of the data is left out.

    Args:
        what: the script has done.
        where: the checkpointer saves.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"{what} on the checkpointer of {where}, which elastic.run was given: elastic.run counts, "
        "loads and saves; leave it out. Only save() may be called, in train"
    )


def refuse_beside(where: str) -> NoReturn:
    """Refuses a checkpointer that ``elastic.run`` does not know of while that is under way.

    It would not hear of a change of the world: survivors would use groups that are gone, and
    newcomers make new ones, with other steps and other plans for the same saves.

    Args:
        where: the checkpointer saves.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"the checkpointer of {where} was used inside of elastic.run, which was not given it, and "
        "so it would not survive a change of the world: give this one to "
        "elastic.run(train, state, checkpointer). A further copy, such as that of the best model "
        "so far, is a matter of rank 0 alone, as each rank holds the whole model: "
        "torch.save(model.state_dict(), path) if world.rank == 0"
    )


def refuse_late(step: int, where: str) -> NoReturn:
    """Refuses a save after the end of ``elastic.run``, when each rank is by itself.

    Args:
        step: of the state.
        where: the checkpointer saves.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"save() was called after elastic.run, when the ranks are connected no more, and step "
        f"{step} is not saved in {where}: call save() in train, on all ranks, before it returns"
    )
