"""The checkpointer with one rank: what it refuses, what it takes, when it saves, what it shows."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpointer import Checkpointer
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.progress_display import ProgressDisplay
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage, LocalWriter
from elastic_runtime.data.sampler import ElasticBatchSampler
from elastic_runtime.errors import CheckpointError, UsageError
from elastic_runtime.events.checkpoint_events import CheckpointProgress
from elastic_runtime.training.state import State
from elastic_runtime.worker.context import WorkerContext, context
from elastic_runtime.worker.peers import GlooGroups
from tests.processes import PROGRAM_TIMEOUT
from tests.ranks import entries_of, saves
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.events import Event


def test_a_bad_directory_is_found_before_the_first_step(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("precious")
    for every in (None, 10):
        with pytest.raises(CheckpointError, match=str(file)):
            Checkpointer(file, {"a": 1}, every=every).resume()
    assert file.read_text() == "precious"


def test_a_job_that_was_not_connected_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"WORLD_SIZE=4.*init_process_group"):
        Checkpointer(tmp_path, {"a": 1}).resume()


def test_nothing_there_means_step_0(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path / "new", {"a": 1})
    ckpt.steps = 7
    assert ckpt.resume() == 0
    assert ckpt.load(None) is None
    assert ckpt.steps == 7
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("entries", "options", "message"),
    [
        ([1], {}, r"entries of a Checkpointer go by name.* list"),
        ({1: 2}, {}, "1 is none"),
        ({"a": 1}, {"on_save_error": "ignore"}, "on_save_error='ignore' is not understood"),
        ({"a": 1}, {"keep": True}, "keep="),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, entries: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(tmp_path, entries, **options)


def test_memory_of_one_process_is_no_place_for_a_job_with_an_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ckpt = Checkpointer("memory://nowhere", {"a": 1})
    assert ckpt.resume() == 0, "one process may use it"
    ckpt.close()
    monkeypatch.setattr(WorkerContext, "has_agent", True)
    worker = Checkpointer("memory://nowhere", {"a": 1})
    with pytest.raises(CheckpointError, match="choose a place that all nodes share"):
        worker.resume()
    worker.close()


def test_it_saves_every_so_many_steps_and_keeps_the_last(tmp_path: Path) -> None:
    def checkpointer() -> tuple[Checkpointer, ElasticBatchSampler]:
        sampler = ElasticBatchSampler(64, 1, rank=0, world=1)
        return Checkpointer(tmp_path, {"data": sampler}, every="3 steps", keep=2), sampler

    ckpt, _ = checkpointer()
    assert ckpt.resume() == 0
    for _ in range(10):
        ckpt.step()
    ckpt.save()
    ckpt.save()
    ckpt.close()
    assert saves(tmp_path) == ["step-10.term-1", "step-9.term-1"]

    ckpt, sampler = checkpointer()
    assert ckpt.resume() == 10
    assert (sampler.cursor, ckpt.steps) == (10, 10)
    ckpt.save()  # it is on disk already
    assert saves(tmp_path) == ["step-10.term-1", "step-9.term-1"]
    ckpt.step()
    ckpt.step()
    ckpt.wait()
    assert saves(tmp_path) == ["step-10.term-1", "step-12.term-2"]


_PLAIN = """
import os, signal, sys
from elastic_runtime import Checkpointer
ckpt = Checkpointer(sys.argv[1], {"a": 1})
ckpt.resume()
for step in range(1000):
    if step == 4:
        os.kill(os.getpid(), signal.SIGTERM)
    ckpt.step()
"""


def test_a_plain_process_saves_when_it_is_terminated(tmp_path: Path) -> None:
    assert python("-c", _PLAIN, tmp_path).returncode == 128 + signal.SIGTERM
    assert saves(tmp_path) == ["step-5.term-1"]


def test_going_back_in_the_middle_of_a_run_begins_a_new_term(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"a": 1}, every=1, sync=True)
    for _ in range(3):
        ckpt.step()
    (tmp_path / "step-3.term-1" / "rank-0.distcp").write_bytes(b"damaged")
    assert ckpt.resume() == 2
    ckpt.step()
    ckpt.close()
    assert saves(tmp_path)[-1] == "step-3.term-2"
    assert Checkpointer(tmp_path, {"a": 1}).resume() == 3


def test_an_interrupted_save_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(writer: LocalWriter) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    ckpt = Checkpointer(tmp_path, {"a": 1})
    ckpt.step()
    monkeypatch.setattr(LocalWriter, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ckpt.save(sync=True)
    assert saves(tmp_path) == []
    ckpt.save(sync=True)
    ckpt.close()
    assert Checkpointer(tmp_path, {"a": 1}).resume() == 1


def test_what_is_newer_than_what_was_resumed_is_set_aside_and_never_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Older ones serve while newer ones cannot be read; those are whole again later."""
    entries: dict[str, Any] = {"a": 0}
    ckpt = Checkpointer(tmp_path, entries, every=1, sync=True)
    for entries["a"] in range(1, 5):
        ckpt.step()
    hidden = [tmp_path / f"step-{step}.term-1" / "rank-0.distcp" for step in (3, 4)]
    for shard in hidden:
        shard.rename(shard.with_name("away"))
    ckpt = Checkpointer(tmp_path, entries, every=1, keep=1, sync=True)
    assert ckpt.resume() == 2
    for shard in hidden:
        shard.with_name("away").rename(shard)
    for _ in range(4):
        ckpt.step()
    assert saves(tmp_path) == ["step-3.term-1", "step-4.term-1", "step-6.term-2"]
    asides = [name for name in entries_of(tmp_path) if name.startswith("aside.")]
    assert asides == ["aside.step-3.term-1", "aside.step-4.term-1"]
    assert caplog.text.count("continued from step-2.term-1") == 2
    assert Checkpointer(tmp_path, entries).resume() == 6


def test_nothing_that_a_writer_left_behind_finishes_is_deleted(tmp_path: Path) -> None:
    """It had begun before it was left behind, and its manifest comes late."""
    entries: dict[str, Any] = {"a": 1}
    slow = Checkpointer(tmp_path, entries, every=1, sync=True)
    slow.step()
    newer = Checkpointer(tmp_path, entries, every=1, keep=1, sync=True)
    assert newer.resume() == 1
    newer.step()
    late = tmp_path / "step-9.term-1"
    shutil.copytree(tmp_path / "step-2.term-2", late)
    manifest = LocalStorage(tmp_path).read_manifest(CheckpointId(2, 2))
    assert manifest is not None
    (late / "MANIFEST.json").write_bytes(replace(manifest, step=9, term=1).encode())
    newer.step()
    newer.step()
    assert saves(tmp_path) == ["step-4.term-2", "step-9.term-1"]
    assert (tmp_path / "aside.step-9.term-1").exists()


def test_who_was_left_behind_and_has_asked_saves_again(tmp_path: Path) -> None:
    first: dict[str, Any] = {"a": 1}
    behind = Checkpointer(tmp_path, first, every=1, sync=True)
    behind.step()
    newer = Checkpointer(tmp_path, {"a": 2}, every=1, sync=True)
    newer.resume()
    newer.step()
    with pytest.raises(CheckpointError, match="term 2"):
        behind.step()
    assert behind.resume() == 2
    behind.step()
    assert saves(tmp_path)[-1] == "step-3.term-3"


def test_another_thread_may_close_it(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"a": 1})
    ckpt.step()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ckpt.close).result()
    ckpt.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_term_that_was_taken_in_vain_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(storage: LocalStorage, name: str) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    ckpt = Checkpointer(tmp_path, {"a": 1})
    ckpt.save(sync=True)
    ckpt.resume()
    ckpt.step()
    monkeypatch.setattr(LocalStorage, "_forget", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ckpt.save(sync=True)
    ckpt.save(sync=True)
    ckpt.close()
    assert saves(tmp_path) == ["step-0.term-1", "step-1.term-3"]


def test_a_script_that_counts_no_steps_is_told_so(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, {"model": nn.Linear(2, 1)})
    ckpt.save()
    ckpt.save(sync=True)  # of the same state: it is made durable
    with pytest.raises(UsageError, match=r"step 0.*call step\(\)"):
        ckpt.save()
    ckpt.step()
    ckpt.save()
    ckpt.save()
    ckpt.close()
    assert saves(tmp_path) == ["step-0.term-1", "step-1.term-1"]


def attached(tmp_path: Path, **entries: Any) -> Checkpointer:
    """One that ``elastic.run`` was given, in a world of one rank."""
    ckpt = Checkpointer(tmp_path, entries)
    nobody: Any = None
    ckpt.attach(State(**entries), GlooGroups(nobody, lambda: nobody, lambda: False))
    return ckpt


def test_what_elastic_run_counts_the_script_does_not_count_as_well(tmp_path: Path) -> None:
    sampler = ElasticBatchSampler(64, 4, rank=0, world=1)
    ckpt = attached(tmp_path, sampler=sampler)
    with pytest.raises(UsageError, match=r"step\(\) was called .* remove it"):
        ckpt.step()
    with pytest.raises(UsageError, match=r"resume\(\) was called .* remove it"):
        ckpt.resume()
    with pytest.raises(UsageError, match=r"steps was set .* remove it"):
        ckpt.steps = 3
    assert (ckpt.steps, sampler.cursor) == (0, 0)
    ckpt.count(1)
    ckpt.save(sync=True)
    ckpt.close()
    assert saves(tmp_path) == ["step-1.term-1"]


def test_one_that_elastic_run_was_not_given_is_refused_while_it_runs(tmp_path: Path) -> None:
    best = Checkpointer(tmp_path, {"model": nn.Linear(2, 1)})
    best.save(sync=True)
    with context().running_in_place():
        for use in (best.save, best.step, best.resume):
            with pytest.raises(UsageError, match=r"was not given it.*torch\.save"):
                use()
    best.step()
    best.close()


def test_a_save_after_the_end_is_none_or_an_error(tmp_path: Path) -> None:
    ckpt = attached(tmp_path, model=nn.Linear(2, 1))
    ckpt.count(1)
    ckpt.save()
    ckpt.wait()
    ckpt.detach()
    ckpt.save(sync=True)  # it is there
    assert saves(tmp_path) == ["step-1.term-1"]
    with pytest.raises(UsageError, match="remove it"):
        ckpt.steps = 2
    ckpt.count(2)
    with pytest.raises(UsageError, match=r"step 2 is not saved.*inside train"):
        ckpt.save()
    ckpt.close()


def test_it_says_where_it_saves_what(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path / "run", {"model": nn.Linear(1, 1), "epoch": 0})
    ckpt.steps = 7
    assert repr(ckpt) == f"Checkpointer('{tmp_path}/run': model, epoch; step 7)"


# What is stored is plain DCP, and tensors of every kind come back


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("tensor", torch.zeros(1_000_000)[:10])
    Checkpointer(tmp_path, {"best": 1, "model": model}).save(sync=True)
    assert (tmp_path / "step-0.term-1" / "rank-0.distcp").stat().st_size < 10_000


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
