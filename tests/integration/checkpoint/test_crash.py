"""A save that is hit at any point: the older checkpoints are untouched, the new one whole or not
there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime import State
from elastic_runtime.checkpoint.save import save_executor
from elastic_runtime.checkpoint.storage.catalog import CheckpointStatus, list_checkpoints
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.checkpoint.storage.storage_contract import PROBE_FILE
from elastic_runtime.errors import CheckpointError
from tests.faults import Fault, FaultyFiles
from tests.processes import Launcher, end, marked, wait_for
from tests.ranks import entries_of, run_ranks, values
from tests.trained import cut_off, trained

OLD = 2  # the steps that an earlier life of the job has saved are 1 and 2
NEW = 3


class Work(State):
    model: nn.ParameterList
    a: int


def work(path: Path, on_error: Literal["continue", "raise"] = "continue") -> Work:
    """A State with enough tensors for two ranks to have a file each."""
    state = Work(model=nn.ParameterList([torch.zeros(9, 9) for _ in range(9)]), a=0)
    state.checkpoints(path, every=1, keep=2, on_error=on_error)
    return state


def train(state: Work, step: int) -> None:
    """Makes the state what it is after a step."""
    with torch.no_grad():
        for parameter in state.model:
            parameter.fill_(step)
    state.a = step
    state.commit()


def step_of(state: Work) -> set[float]:
    """The step of all that is in a state."""
    return {state.a, *(float(x) for p in state.model for x in p.detach().unique())}


def wait(state: Work) -> None:
    """Waits for the save in the background."""
    assert state._saver is not None
    state._saver.wait()


def save_the_old(path: Path) -> None:
    with trained(state := work(path)):
        for step in range(1, OLD + 1):
            train(state, step)


def save_the_new(path: Path, fault: Fault, victim: int = 0) -> list[str]:
    """Resumes and saves a step more, which deletes the first; one rank has a fault.

    Returns:
        The points of this rank.
    """
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))
    mine = fault if not dist.is_initialized() or dist.get_rank() == victim else Fault()
    files = FaultyFiles(path, mine)
    save_executor.LAST_SAVE_RETRY_PAUSES = ()  # a failure is to be seen
    with cut_off(state := work(path)):
        assert state.step == OLD
        train(state, NEW)
        wait(state)
    return files.story


def resumed(path: Path) -> int:
    """What a new life finds; it must not stumble over what the crash has left either."""
    with trained(state := work(path)):
        step = state.step
        assert step_of(state) == {step}
        train(state, step + 1)
    return step


def contents(path: Path, step: int) -> dict[str, bytes]:
    """The files of one of the old checkpoints, by name."""
    directory = path / f"step-{step}.term-1"
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def check(path: Path, old: Path) -> int:
    """The older ones are as they were; all that is resumed is the old state, or the new one.

    Returns:
        Which of them.
    """
    assert contents(path, OLD) == contents(old, OLD)
    exists = (path / f"step-{NEW}.term-2" / "MANIFEST.json").exists()
    if not exists:
        assert contents(path, 1) == contents(old, 1)
    conditions = {one.which: one.status for one in list_checkpoints(LocalStorage(path))}
    assert CheckpointStatus.DAMAGED not in conditions.values(), "one exists in part"
    step = resumed(path)
    assert step == (NEW if exists else OLD)
    left = {one.status for one in list_checkpoints(LocalStorage(path))}
    assert left == {CheckpointStatus.WHOLE}, "the life after it has removed the rest of the save"
    return step


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old") / "run"
    values(run_ranks(1, save_the_old, path))
    assert entries_of(path) == ["step-1.term-1", "step-2.term-1", "term-1"]
    return path


@pytest.fixture
def copies(old: Path, tmp_path: Path) -> Any:
    """Makes copies of the old directory."""
    count = 0

    def copy() -> Path:
        nonlocal count
        count += 1
        return Path(shutil.copytree(old, tmp_path / f"copy-{count}"))

    return copy


def points(story: list[str], only: str = "") -> list[int]:
    """The numbers of all points, or of those of one kind."""
    return [number for number, point in enumerate(story, 1) if point.startswith(only)]


def measure(path: Path) -> tuple[list[str], int, int]:
    """The points of a save, and how much was written by whose account."""
    files = FaultyFiles(path, Fault())
    with cut_off(state := work(path)):
        assert state.step == OLD
        train(state, NEW)
        wait(state)
    directory = path / f"step-{NEW}.term-2"
    size = sum(file.stat().st_size for file in directory.iterdir())
    size += files.story.count(f"pwritev {PROBE_FILE}")  # a byte each time, and gone again
    return files.story, files.written, size + (path / "term-2").stat().st_size


def test_no_write_of_a_save_goes_unseen(copies: Any) -> None:
    ((story, written, size),) = values(run_ranks(1, measure, copies()))
    assert written == size
    files = ["term-2", "rank-0.distcp", ".metadata", "MANIFEST.json.partial"]
    for file in files:
        calls = [point.split()[0] for point in story if point.endswith(f" {file}")]
        assert calls[:3] == ["open", "pwritev", "fsync"]
    assert story.index("fsync MANIFEST.json.partial") < story.index("rename MANIFEST.json.partial")
    after = story[story.index("rename MANIFEST.json.partial") + 1 :]
    assert after[:2] == ["fsync step-3.term-2", f"fsync {after[1].split()[1]}"]


@pytest.mark.parametrize("kind", ["kill", "torn"])
def test_killed_at_any_point(copies: Any, old: Path, kind: str) -> None:
    (story,) = values(run_ranks(1, save_the_new, copies(), Fault()))
    found = []
    for at in points(story, "pwritev" if kind == "torn" else ""):
        path = copies()
        (outcome,) = run_ranks(1, save_the_new, path, Fault(at, kind))
        assert outcome.signal == 9, story[at - 1]
        found.append(check(path, old))
    assert found == sorted(found), "once it exists it stays"
    assert set(found) == ({OLD, NEW} if kind == "kill" else {OLD})


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_at_any_point_takes_only_this_save_along(
    copies: Any, old: Path, victim: int
) -> None:
    story = values(run_ranks(2, save_the_new, copies(), Fault()))[victim]
    # What comes before is the same as with one rank.
    first = points(story, "mkdir step-3.term-2" if victim == 0 else "open rank-1.distcp")[0]
    assert len(story) >= first + 2
    for at in range(first, len(story) + 1):
        path = copies()
        outcomes = run_ranks(2, save_the_new, path, Fault(at, "kill"), victim)
        assert outcomes[victim].signal == 9, story[at - 1]
        # The survivor sees what any collective shows when a peer has died, if anything at all.
        assert outcomes[1 - victim].error in ("RuntimeError", "DistBackendError", "")
        check(path, old)


def fail_everywhere(paths: list[Path], old: Path, kind: str, story: list[str]) -> list[str]:
    """Tries a fault at each point in one process.

    Returns:
        What was said, one text for each point; "" for none.
    """
    told = []
    for path, at in zip(paths, points(story), strict=True):
        files = FaultyFiles(path, Fault(at, kind))
        save_executor.LAST_SAVE_RETRY_PAUSES = ()
        state, error = work(path, "raise"), ""
        with ExitStack() as stack:
            try:
                stack.enter_context(cut_off(state))
                train(state, NEW)
                wait(state)
            except CheckpointError as caught:
                error = str(caught)
            files.lift()
            told.append(error)
            assert contents(path, OLD) == contents(old, OLD)
            exists = (path / f"step-{NEW}.term-2" / "MANIFEST.json").exists()
            # Where nothing works any more, nothing can be cleaned up either: what failed after it
            # had appeared stays, and is whole.
            assert exists == (not error) or kind == "broken", story[at - 1]
            if not exists:
                assert contents(path, 1) == contents(old, 1)
            if state.step == NEW:
                # The fault is over: the same process saves the next step.
                train(state, NEW + 1)
                wait(state)
        assert resumed(path) == (NEW + 1 if state.step == NEW + 1 else OLD)
    return told


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "full", "broken"])
def test_a_failure_at_any_point_is_said_and_got_over(copies: Any, old: Path, kind: str) -> None:
    (story,) = values(run_ranks(1, save_the_new, copies(), Fault()))
    paths = [copies() for _ in story]
    (told,) = values(run_ranks(1, fail_everywhere, paths, old, kind, story))
    committed = story.index("rename MANIFEST.json.partial")
    text = "No space left" if kind in ("ENOSPC", "full") else "Input/output error"
    for path, point, error in zip(paths[:committed], story, told, strict=False):
        if error:
            assert text in error and str(path) in error, point
        else:
            # What is only cleaned up does not matter; space is not needed for every call.
            harmless = point.startswith(("unlink", "rmdir", "mkdir copy"))
            assert harmless or kind == "full", point


def test_short_writes_are_gone_on_with(copies: Any, old: Path) -> None:
    (story,) = values(run_ranks(1, save_the_new, copies(), Fault()))
    for at in points(story, "pwritev"):
        path = copies()
        values(run_ranks(1, save_the_new, path, Fault(at, "short")))
        assert check(path, old) == NEW


@pytest.mark.parametrize("victim", [0, 1])
def test_a_failure_of_one_rank_is_heard_of_by_all(copies: Any, old: Path, victim: int) -> None:
    story = values(run_ranks(2, save_the_new, copies(), Fault()))[victim]
    for at in points(story):
        if story[at - 1].endswith(f"rank-{victim}.distcp") and "unlink" not in story[at - 1]:
            path = copies()
            outcomes = run_ranks(2, save_the_new, path, Fault(at, "ENOSPC"), victim)
            assert [outcome.error for outcome in outcomes] == ["CheckpointFailed"] * 2
            assert all(f"rank-{victim}.distcp" in outcome.text for outcome in outcomes)
            assert f"step-{NEW}.term-2" not in entries_of(path)
            assert check(path, old) == OLD


# Who was left behind


def zombie(path: Path, fault: Fault) -> str:
    """The error, if there is one, of a save that another life of the job overtook."""
    try:
        save_the_new(path, fault)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_writer_that_was_left_behind_never_wins(copies: Any, old: Path, tmp_path: Path) -> None:
    (story,) = values(run_ranks(1, save_the_new, copies(), Fault()))
    # From the moment that it holds its term until it has deleted what it need not keep.
    first = story.index("mkdir step-3.term-2") + 1
    for at in range(first, len(story) + 1):
        path, release = copies(), tmp_path / f"go-{at}"
        held = Path(f"{release}.held")
        with ThreadPoolExecutor(1) as pool:
            behind = pool.submit(run_ranks, 1, zombie, path, Fault(at, "hold", release))
            wait_for(held.exists, 30, f"the zombie at {story[at - 1]}")
            before = resumed(path)  # and saves a step more, as another life with a newer term
            survivors = {name: tree(path / name) for name in entries_of(path) if "term-3" in name}
            release.touch()
            (outcome,) = behind.result()
        committed = story.index("rename MANIFEST.json.partial") + 1
        if at <= story.index("open MANIFEST.json.partial"):
            assert "now belongs to term 3" in outcome.value, story[at - 1]
        assert before == (OLD if at <= committed else NEW)
        # All that the newer life has written is there, and it is the newest.
        assert survivors == {name: tree(path / name) for name in survivors}
        assert resumed(path) == before + 1


_JOB = """
import sys
from pathlib import Path
import torch.distributed as dist
from tests.faults import Fault
from tests.integration.checkpoint import test_crash
dist.init_process_group("gloo")
path, point, victim, release = sys.argv[1:]
if point == "none":
    print("resumed", test_crash.resumed(Path(path)), flush=True)
else:
    test_crash.save_the_new(Path(path), Fault(point, "hold", Path(release)), int(victim))
"""


def launch(start: Launcher, path: Path, run_id: str, *arguments: object) -> subprocess.Popen[str]:
    """Two workers and their agent."""
    script = path.with_name("job.py")
    script.write_text(_JOB)
    return start(
        *("--nproc-per-node", 2, "--run-id", run_id, script, path, *arguments),
        environ={"PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("whole_node", "victim", "point", "found"),
    [
        (False, 1, "pwritev rank-1.distcp", OLD),
        (False, 0, "rename MANIFEST.json.partial", OLD),
        (True, 0, "fsync .metadata", OLD),
        (True, 1, "fsync rank-1.distcp", OLD),
        (True, 0, "rename step-1.term-1", NEW),
    ],
)
def test_an_agent_or_a_node_that_dies_during_a_save(
    copies: Any, old: Path, tmp_path: Path, whole_node: bool, victim: int, point: str, found: int
) -> None:
    path, release = copies(), tmp_path / "go"
    with Launcher(tmp_path) as start:
        agent = launch(start, path, "one", point, victim, release)
        wait_for(Path(f"{release}.held").exists, 60, f"rank {victim} at {point}")
        if whole_node:
            end(start.mark)
        else:
            agent.kill()
            wait_for(lambda: not marked(start.mark), 30, "the end of the workers")
    # The store is empty, the run id another one, and the directory is the old one.
    assert check(path, old) == found


def test_a_job_that_is_started_again_under_another_name_goes_on(
    copies: Any, tmp_path: Path
) -> None:
    path = copies()
    for run_id, step in (("one", OLD), ("two", NEW)):
        with Launcher(tmp_path) as start:
            shown, _ = launch(start, path, run_id, "none", 0, "-").communicate(timeout=60)
        assert shown.count(f"resumed {step}") == 2, shown
    assert entries_of(path) == ["step-3.term-2", "step-4.term-3", "term-3"]
    holder = json.loads((path / "term-3").read_text())
    assert holder["run"] == "two"


def tree(path: Path) -> dict[str, bytes] | bytes:
    """All of a file or a directory."""
    if path.is_file():
        return path.read_bytes()
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_what_was_damaged_does_not_count_among_those_to_keep(copies: Any) -> None:
    path = copies()
    file = path / f"step-{OLD}.term-1" / "rank-0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert resumed(path) == 1
    # Two are kept, and the damaged one is left for people to look at, out of the order.
    aside, *rest = entries_of(path)
    assert aside == "aside.step-2.term-1"
    assert rest == ["step-1.term-1", "step-2.term-1", "step-2.term-2", "term-2"]
