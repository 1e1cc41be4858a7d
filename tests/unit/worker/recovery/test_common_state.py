"""When it is better to stop than to go on from nothing."""

from __future__ import annotations

import pytest
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.limits import LOST_STEPS_ALLOWED
from elastic_runtime.worker.recovery.common_state import EarlierRounds, StateRecovery
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, RankStatus, choose
from elastic_runtime.worker.state.training_state import State, StateLost

_NEW = RankStatus(0, MemoryCondition.NEW)


def _check(status: RankStatus, committed: int, *, start_over: bool = False) -> None:
    state = State(model=nn.Linear(1, 1))
    settling = StateRecovery(state, None, lambda *_, **__: None, start_over=start_over)
    settling._check_beginning(choose([status]), EarlierRounds("job", committed))


@pytest.mark.parametrize("committed", [-1, 0, LOST_STEPS_ALLOWED])
def test_a_job_that_has_committed_next_to_nothing_begins_again(committed: int) -> None:
    _check(_NEW, committed)


def test_nobody_falls_back_to_the_beginning_in_silence() -> None:
    with pytest.raises(UsageError, match=r"nothing is saved: 61 steps are lost.*start_over"):
        _check(_NEW, 61)
    _check(_NEW, 61, start_over=True)


def test_half_done_memory_is_nothing_to_go_on_from() -> None:
    dirty = RankStatus(61, MemoryCondition.DIRTY, round=1)
    with pytest.raises(UsageError, match="no rank holds a whole state any more"):
        _check(dirty, -1)
    # Processes that are new begin again.
    with pytest.raises(StateLost):
        _check(dirty, -1, start_over=True)
