"""torch's watchdogs start when the environment asks for them, and else never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.agent.workers import torch_watchdogs
from elastic_runtime.agent.workers.torch_watchdogs import Watchdogs
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

TIMER = "elastic_runtime.agent.workers.torch_watchdogs.timer.FileTimerServer"
ON, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"


class _Server:
    """Stands in for both of torch's servers."""

    made: list[_Server]

    def __init__(self, **options: Any) -> None:
        self.options, self.does = options, list[str]()
        self.made.append(self)

    def start(self) -> None:
        self.does.append("start")

    def stop(self) -> None:
        self.does.append("stop")

    def get_last_progress_time(self) -> int:
        return 50


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Server]:
    found: list[_Server] = []
    monkeypatch.setattr(_Server, "made", found, raising=False)
    monkeypatch.setattr(TIMER, _Server)
    monkeypatch.setattr(torch_watchdogs, "create_healthcheck_server", _Server)
    monkeypatch.delenv(ON, raising=False)
    monkeypatch.delenv(FILE, raising=False)
    return found


def test_none_starts_unasked(made: list[_Server], tmp_path: Path) -> None:
    watchdogs = Watchdogs("run", str(tmp_path), 0, lambda: 0.0)
    watchdogs.start()
    watchdogs.stop()
    assert not made and watchdogs.environment() == {}


def test_each_starts_and_ends(
    made: list[_Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ON, "1")
    watchdogs = Watchdogs("run", str(tmp_path), 8080, lambda: 40.9)
    watchdogs.start()
    watchdogs.start()
    timer, health = made
    assert watchdogs.environment() == {FILE: str(tmp_path / "timers")}
    assert timer.options["file_path"] == str(tmp_path / "timers")
    assert (timer.options["run_id"], health.options["port"]) == ("run", 8080)
    assert health.options["alive_callback"]() == 50, "the later of the two signs of life"
    watchdogs.stop()
    assert health.options["alive_callback"]() == 40
    assert [server.does for server in made] == [["start", "stop"]] * 2


def test_a_path_where_no_pipe_can_be_made_is_a_mistake_of_the_users(
    made: list[_Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**_: Any) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setenv(ON, "1")
    monkeypatch.setenv(FILE, "/proc/x")
    monkeypatch.setattr(TIMER, fail)
    with pytest.raises(UsageError, match=r"TORCHELASTIC_TIMER_FILE='/proc/x'.*Permission denied"):
        Watchdogs("run", str(tmp_path), 0, lambda: 0.0).start()
