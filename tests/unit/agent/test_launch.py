"""How a launch begins, how it ends and who says so, and what a signal does that comes once more."""

from __future__ import annotations

import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent import launch
from elastic_runtime.agent.crash import ended_by, fault_of
from elastic_runtime.agent.launch import has_last_word
from elastic_runtime.agent.start_notice import Starting
from elastic_runtime.config import Output, Siblings
from elastic_runtime.errors import EXIT_CRASHED, EXIT_DONE, EXIT_FAILED, EXIT_LEFT
from elastic_runtime.events.job_events import StartSlow
from elastic_runtime.protocol.records import LOST, OutcomeRecord
from elastic_runtime.system.threads import Crash
from tests.unit.agent.jobs import ROUND, job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_runtime.events import Event


NAMES = ("a", "b", "c")


# Who says how the job has ended


def _end(failed_on: str) -> OutcomeRecord:
    return OutcomeRecord("life", False, 1, "it failed", node=failed_on)


@pytest.fixture
def siblings() -> Iterator[Siblings]:
    word, put = os.pipe()
    os.set_blocking(word, False)
    os.write(put, b".")
    yield Siblings(NAMES, word)
    os.close(word)
    os.close(put)


def _who_speaks(there: Sequence[str], outcome: OutcomeRecord, siblings: Siblings) -> list[str]:
    """All of them ask at the same time."""
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(has_last_word, name, outcome, siblings) for name in there}
        return [name for name, answer in asked.items() if answer.result()]


@pytest.mark.parametrize("failed_on", NAMES)
def test_the_node_on_which_it_failed_says_so(siblings: Siblings, failed_on: str) -> None:
    assert _who_speaks(NAMES, _end(failed_on), siblings) == [failed_on]


@pytest.mark.parametrize("there", [("a", "c"), ("c",)])
def test_if_that_node_is_dead_or_is_another_of_its_name_one_of_the_others_says_so(
    siblings: Siblings, there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_PRECEDENCE", 0.1)
    assert len(_who_speaks(there, _end("b"), siblings)) == 1


@pytest.mark.parametrize("failed_on", ["d", ""])
@pytest.mark.parametrize("there", [NAMES, ("c", "b"), ("b",)])
def test_of_a_cause_elsewhere_tells_who_comes_first(
    siblings: Siblings, failed_on: str, there: tuple[str, ...]
) -> None:
    """Others may have gone, or know nothing of the round: one tells it all the same."""
    assert [name for name in there if has_last_word(name, _end(failed_on), siblings)] == [there[0]]


def test_who_ends_for_a_reason_of_its_own_says_so(siblings: Siblings) -> None:
    assert all(has_last_word(name, None, siblings) for name in NAMES)
    assert has_last_word("a", _end("b"), None), "as does who is alone in its terminal"


# Signals that come once more while a process ends that was asked to leave


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _leave)
    yield
    signal.signal(signal.SIGTERM, before)


def _leave(*_: object) -> None:
    raise SystemExit


def _run(code: int, *, ends: bool) -> None:
    asked: list[int] = []
    agent: Any = SimpleNamespace(ask_to_leave=asked.append, finish=None)
    config: Any = SimpleNamespace(signals=("SIGTERM",))
    with launch._signals(config, agent, ends=ends):
        os.kill(os.getpid(), signal.SIGTERM)
        agent.finish = SimpleNamespace(exit_code=code)
    assert asked == [signal.SIGTERM]


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("code", [EXIT_LEFT, EXIT_FAILED, EXIT_DONE])
def test_a_request_after_the_end_replaces_no_exit_code(code: int) -> None:
    _run(code, ends=True)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("handled")
def test_in_a_process_that_goes_on_signals_are_as_before() -> None:
    _run(EXIT_LEFT, ends=False)
    assert signal.getsignal(signal.SIGTERM) is _leave


# What a person hears of a start that takes long


def test_who_waits_hears_what_for_again_and_again_until_it_is_over() -> None:
    said: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with Starting(said.put, "importing torch", first=0.01):
        for _ in range(2):
            slow = said.get(timeout=30)
            assert isinstance(slow, StartSlow)
            assert slow.doing == "importing torch"
    assert not [one for one in threading.enumerate() if one.name == "slow-start"] or said.empty()


def test_what_begins_anew_is_spoken_of_once_and_is_over_with_its_end() -> None:
    starting = Starting(lambda event: None, "importing torch", first=30.0)
    starting.begin()
    first = starting._over
    starting.begin()  # the fork server has died while it imported
    assert first.is_set()
    starting.end()


def test_what_is_quick_is_nothing_to_speak_of() -> None:
    said: list[Event] = []
    starting = Starting(said.append, "importing torch", first=30.0)
    starting.begin()
    starting.end()
    starting._speak(starting._over, 0.0)  # its thread was about to speak in that moment
    assert said == []


# What follows from a defect of the package in a thread of an agent


CRASH = Crash("heartbeat", "KeyError: 1", "Traceback …\nKeyError: 1\n")


def test_the_traceback_is_in_a_file_that_the_last_word_names(tmp_path: Path) -> None:
    finish, event = ended_by(CRASH, job(output=Output(log_dir=str(tmp_path))))
    assert finish.exit_code == EXIT_CRASHED
    assert finish.message.startswith("the agent of a has crashed: KeyError: 1 (in its thread heart")
    assert finish.message.endswith(f"the traceback is in {event.file}")
    assert Path(event.file).parent == tmp_path
    assert CRASH.trace in Path(event.file).read_text()


def test_a_traceback_that_cannot_be_written_is_in_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    finish, event = ended_by(CRASH, job(output=Output(log_dir=str(tmp_path / "file"))))
    assert event.file == ""
    assert finish.message.endswith(f"it could not be written down:\n{CRASH.trace}")


def test_the_job_pays_for_it_what_a_lost_node_costs() -> None:
    fault = fault_of(CRASH, ROUND)
    assert (fault.round, fault.kind) == (3, LOST)
    assert fault.reason == "the agent has crashed (KeyError: 1)"
