"""What a person hears of a start that takes long."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from elastic_runtime.agent.start_notice import Starting
from elastic_runtime.events.job_events import StartSlow

if TYPE_CHECKING:
    from elastic_runtime.events import Event


def test_who_waits_hears_what_for_again_and_again_until_it_is_over() -> None:
    said: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with Starting(said.put, "importing torch", first=0.01):
        for _ in range(2):
            slow = said.get(timeout=30)
            assert isinstance(slow, StartSlow)
            assert slow.doing == "importing torch"
    assert not [one for one in threading.enumerate() if one.name == "slow-start"] or said.empty()


def test_what_is_quick_is_nothing_to_speak_of() -> None:
    said: list[Event] = []
    starting = Starting(said.append, "importing torch", first=30.0)
    starting.begin()
    starting.end()
    starting._speak(starting._over, 0.0)  # its thread was about to speak in that moment
    assert said == []
