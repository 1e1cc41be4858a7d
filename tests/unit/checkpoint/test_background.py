"""What is done beside training, and what is left of it when it fails."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

from elastic_runtime.checkpoint.background import Task, told


class _Group:
    """Stands for what a round has, and what must end with it."""


def test_a_failure_holds_nothing_of_the_round_in_which_it_happened() -> None:
    seen: list[weakref.ref[_Group]] = []

    def meet(group: _Group) -> None:
        raise RuntimeError(f"a peer of {group} is gone")

    def save() -> None:
        group = _Group()
        seen.append(weakref.ref(group))
        meet(group)

    gc.disable()  # it comes late, if at all
    try:
        with ThreadPoolExecutor(1) as thread:
            task = Task(thread, lambda _: told(save)())
        assert task.has_failed
        assert "a peer of" in str(task.error)
        assert seen[0]() is None
    finally:
        gc.enable()
