"""Checkpoints of one rank: what is refused, when they are made, what is kept, what is shown."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import elastic_runtime as elastic
from elastic_runtime import State
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage, LocalWriter
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import CheckpointError, CheckpointUsageError, UsageError
from elastic_runtime.events.checkpoint_events import CheckpointProgress
from elastic_runtime.worker.context import WorkerContext
from tests.processes import PROGRAM_TIMEOUT
from tests.ranks import entries_of, saves
from tests.trained import cut_off, trained
from tests.unit.checkpoint.states import save, state_in
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.events import Event


def test_a_bad_directory_is_found_before_the_first_step(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    for every in (None, 10):
        with pytest.raises(CheckpointError, match=str(file)), trained(state_in(file, every=every)):
            pass
    assert file.read_text() == "precious"


def test_a_rank_that_is_not_connected_yet_loads_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, {"a": 3})
    monkeypatch.setenv("WORLD_SIZE", "4")
    state = State(a=1)
    assert (elastic.load(tmp_path, state), state.a) == (1, 3)


def test_nothing_there_means_step_0(tmp_path: Path) -> None:
    state = state_in(tmp_path / "new")
    with cut_off(state):
        assert (state.step, state.a) == (0, 1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore' is not understood"),
        ({"keep": True}, "keep="),
        ({"snapshots": "often"}, "snapshots='often'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    state = State(a=1)
    with pytest.raises(CheckpointUsageError, match=message):
        state.checkpoints(tmp_path, **settings)
    state.checkpoints(tmp_path)  # nothing of the first call has stayed
    with pytest.raises(UsageError, match="called before; a State is saved to one place"):
        state.checkpoints(tmp_path)


def test_memory_of_one_process_is_no_place_for_a_job_with_an_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save("memory://nowhere")
    assert elastic.load("memory://nowhere", State(a=0)) == 1, "one process may use it"
    monkeypatch.setattr(WorkerContext, "has_agent", True)
    with pytest.raises(CheckpointError, match="choose a place that all nodes share"):
        save("memory://nowhere")


def test_it_saves_every_so_many_steps_and_keeps_the_last(tmp_path: Path) -> None:
    def job() -> tuple[State, ElasticBatchSampler]:
        sampler = ElasticBatchSampler(64, 1, rank=0, world=1)
        return state_in(tmp_path, {"data": sampler}, every="3 steps", keep=2), sampler

    state, _ = job()
    with trained(state):
        for _ in range(10):
            state.commit()
        state.save()
        state.save()
    assert saves(tmp_path) == ["step-10.term-1", "step-9.term-1"]

    state, sampler = job()
    with trained(state):
        assert (state.step, sampler.cursor) == (10, 10)
        state.save()  # it is on disk already
        assert saves(tmp_path) == ["step-10.term-1", "step-9.term-1"]
        state.commit()
        state.commit()
    assert saves(tmp_path) == ["step-10.term-1", "step-12.term-2"]


def test_some_of_the_older_ones_may_be_kept_for_ever(tmp_path: Path) -> None:
    state = state_in(tmp_path, every=1, sync=True, keep=1, keep_every=3)
    with trained(state):
        for _ in range(8):
            state.commit()
    kept = [f"step-{step}.term-1" for step in (3, 6, 8)]
    assert saves(tmp_path) == kept


def test_the_last_state_is_saved_unless_training_ends_with_an_error(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    with pytest.raises(ValueError, match="a fault"), trained(state):
        state.commit()
        raise ValueError("a fault")
    assert not tmp_path.exists() or saves(tmp_path) == []
    save(tmp_path)
    assert saves(tmp_path) == ["step-1.term-1"]


def test_after_the_end_nothing_can_be_saved(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    with trained(state):
        state.commit()
    with pytest.raises(UsageError, match=r"save\(\) needs .*connected ranks"):
        state.save()


_PLAIN = """
import os, signal, sys
import elastic_runtime as elastic
state = elastic.State(a=1)
state.checkpoints(sys.argv[1])
with state.resumed():
    for step in range(1000):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        state.commit()
"""


def test_a_plain_process_saves_when_it_is_terminated(tmp_path: Path) -> None:
    assert python("-c", _PLAIN, tmp_path).returncode == 128 + signal.SIGTERM
    assert saves(tmp_path) == ["step-5.term-1"]


_AFTER_IT = """
import os, signal, sys
import elastic_runtime as elastic
state = elastic.State(a=1)
state.checkpoints(sys.argv[1])
with state.resumed():
    state.commit()
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


def test_after_training_a_plain_process_is_terminated_as_any_other(tmp_path: Path) -> None:
    assert python("-c", _AFTER_IT, tmp_path).returncode == -signal.SIGTERM
    assert saves(tmp_path) == ["step-1.term-1"]


def test_an_interrupted_save_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(writer: LocalWriter) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    state = state_in(tmp_path)
    with cut_off(state):
        state.commit()
        monkeypatch.setattr(LocalWriter, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state.save(sync=True)
        assert saves(tmp_path) == []
        state.save(sync=True)
    assert elastic.load(tmp_path, State(a=0)) == 1


def test_what_is_newer_than_what_was_resumed_is_set_aside_and_never_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Older ones serve while newer ones cannot be read; those are whole again later."""
    state = state_in(tmp_path, every=1, sync=True)
    with cut_off(state):
        for _ in range(4):
            state.commit()
    hidden = [tmp_path / f"step-{step}.term-1" / "rank-0.distcp" for step in (3, 4)]
    for shard in hidden:
        shard.rename(shard.with_name("away"))
    state = state_in(tmp_path, every=1, keep=1, sync=True)
    with cut_off(state):
        assert state.step == 2
        for shard in hidden:
            shard.with_name("away").rename(shard)
        for _ in range(4):
            state.commit()
    assert saves(tmp_path) == ["step-3.term-1", "step-4.term-1", "step-6.term-2"]
    asides = [name for name in entries_of(tmp_path) if name.startswith("aside.")]
    assert asides == ["aside.step-3.term-1", "aside.step-4.term-1"]
    assert caplog.text.count("continued from step-2.term-1") == 2
    assert elastic.load(tmp_path, State(a=0)) == 6


def test_nothing_that_a_writer_left_behind_finishes_is_deleted(tmp_path: Path) -> None:
    """It had begun before it was left behind, and its manifest comes late."""
    save(tmp_path)
    newer = state_in(tmp_path, every=1, keep=1, sync=True)
    with cut_off(newer):
        newer.commit()
        late = tmp_path / "step-9.term-1"
        shutil.copytree(tmp_path / "step-2.term-2", late)
        manifest = LocalStorage(tmp_path).read_manifest(CheckpointId(2, 2))
        assert manifest is not None
        (late / "MANIFEST.json").write_bytes(replace(manifest, step=9, term=1).encode())
        newer.commit()
        newer.commit()
    assert saves(tmp_path) == ["step-4.term-2", "step-9.term-1"]
    assert (tmp_path / "aside.step-9.term-1").exists()


def test_who_was_left_behind_is_told_so_and_saves_again_when_it_is_restarted(
    tmp_path: Path,
) -> None:
    behind = state_in(tmp_path, every=1, sync=True)
    with cut_off(behind):
        behind.commit()
        save(tmp_path, {"a": 2})
        with pytest.raises(CheckpointError, match="term 2"):
            behind.commit()
    save(tmp_path)
    assert saves(tmp_path) == ["step-1.term-1", "step-2.term-2", "step-3.term-3"]


def test_a_term_that_was_taken_in_vain_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(storage: LocalStorage, name: str) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    save(tmp_path)
    state = state_in(tmp_path)
    with trained(state):
        state.commit()
        monkeypatch.setattr(LocalStorage, "_forget", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state.save(sync=True)
    assert saves(tmp_path) == ["step-1.term-1", "step-2.term-3"]


# What is stored is plain DCP, and tensors of every kind come back


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("tensor", torch.zeros(1_000_000)[:10])
    save(tmp_path, {"best": 1, "model": model, "generators": False})
    assert (tmp_path / "step-1.term-1" / "rank-0.distcp").stat().st_size < 10_000


# Long work says how far it has come; short work says nothing


def test_what_is_over_soon_is_not_shown() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading", 10, events.append) as progress:
        progress.advance(10)
    assert not events


def test_an_event_where_nobody_watches() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading step 3", 200, events.append, patience=0, interval=0) as progress:
        progress.advance(50)
        progress.advance(100)
        progress.advance(50)
    doing = "loading step 3"
    assert events == [CheckpointProgress(doing, percent) for percent in (25, 75, 100)]


def test_events_keep_their_distance() -> None:
    events: list[Event] = []
    with ProgressDisplay("loading", 100, events.append, patience=0, interval=60) as progress:
        for _ in range(100):
            progress.advance(1)
    assert len(events) == 1


def test_ranks_other_than_the_first_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("loading", 100, None, patience=0) as progress:
        progress.advance(1)
    assert capfd.readouterr() == ("", "")


_WATCHED = """
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
with ProgressDisplay("loading step 3", 1 << 20, lambda _: print("an event"), patience=0) as bar:
    for _ in range(2):
        bar.advance(1 << 19)
"""


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": os.getcwd()}
    with open(theirs, "wb", buffering=0) as terminal:
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED],
            stderr=terminal,
            stdout=subprocess.PIPE,
            env=env,
            check=True,
            timeout=PROGRAM_TIMEOUT,
        )
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "loading step 3" in shown
    assert "1.0/1.0 MB" in shown
    assert not done.stdout
