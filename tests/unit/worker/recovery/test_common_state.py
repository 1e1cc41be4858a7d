"""When it is better to stop than to go on from nothing."""

from __future__ import annotations

import pytest
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.recovery.common_state import FEW, Past, Settling
from elastic_runtime.worker.recovery.recovery_source import Condition, Standing, choose
from elastic_runtime.worker.state.training_state import State, StateLost

_NEW = Standing(0, Condition.NEW)


def _check(standing: Standing, committed: int, *, start_over: bool = False) -> None:
    state = State(model=nn.Linear(1, 1))
    settling = Settling(state, None, lambda *_, **__: None, start_over=start_over)
    settling._check_beginning(choose([standing]), Past("job", committed))


@pytest.mark.parametrize("committed", [-1, 0, FEW])
def test_a_job_that_has_committed_next_to_nothing_begins_again(committed: int) -> None:
    _check(_NEW, committed)


def test_nobody_falls_back_to_the_beginning_in_silence() -> None:
    with pytest.raises(UsageError, match=r"nothing is saved: 61 steps are lost.*start_over"):
        _check(_NEW, 61)
    _check(_NEW, 61, start_over=True)


def test_half_done_memory_is_nothing_to_go_on_from() -> None:
    dirty = Standing(61, Condition.DIRTY, round=1)
    with pytest.raises(UsageError, match="no rank holds a whole state any more"):
        _check(dirty, -1)
    # Processes that are new begin again.
    with pytest.raises(StateLost):
        _check(dirty, -1, start_over=True)
