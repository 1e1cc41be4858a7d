"""What the demonstration concludes from the lines of its job."""

from __future__ import annotations

from scripts.demo import went_back

EPOCH = "[default0]:epoch 3: step 92, 3 workers, accuracy 0.931"


def test_going_on_from_an_older_step_is_noticed() -> None:
    onward = "[default1]:from step {} on: 2 workers, epoch 3"
    assert went_back([EPOCH, onward.format(92), onward.format(101)]) == []
    assert went_back([onward.format(40), EPOCH]) == []
    assert went_back([EPOCH, onward.format(90), onward.format(95)]) == [onward.format(90)]
