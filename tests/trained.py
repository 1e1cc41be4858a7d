"""A State that is trained in the restart form, any number of times in one process."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from elastic_runtime.training import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime import State, World


class _CutOff(Exception):
    pass


@contextmanager
def trained(state: State, *, strict: bool = True) -> Iterator[World]:
    """As ``with state.resumed()`` of a script: the ranks are connected, the last state is saved.

    Args:
        state: a new one each time, as in a process that was started again.
        strict: see ``State.resumed``.
    """
    run_loop._ran = False
    with state.resumed(strict=strict) as world:
        yield world


@contextmanager
def cut_off(state: State, *, strict: bool = True) -> Iterator[World]:
    """The same, but for its end: nothing is saved there, as after a fault.

    Args:
        state: see ``trained``.
        strict: see ``trained``.
    """
    with suppress(_CutOff), trained(state, strict=strict) as world:
        yield world
        raise _CutOff
