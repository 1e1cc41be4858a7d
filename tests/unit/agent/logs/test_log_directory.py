"""Log directories: one for each round, node and rank, and none used twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.agent.logs.error_files import read_error_file
from elastic_runtime.agent.logs.log_directory import LogDirs, WorkerDir
from elastic_runtime.config import Output
from elastic_runtime.errors import UsageError
from tests.unit.agent.jobs import job


def dirs(
    log_dir: Path | None, private: Path, *, output: dict[str, Any] | None = None, **names: str
) -> LogDirs:
    """The directories of node n, in a log directory or in none."""
    kept = Output(log_dir=str(log_dir) if log_dir else None, **(output or {}))
    return LogDirs(job(output=kept, **{"node_name": "n", **names}), str(private))


def own(worker_dir: WorkerDir) -> Path:
    """The directory of a worker in the log directory."""
    return Path(worker_dir.log("stdout")).parent


def test_the_directory_names_round_node_and_rank(tmp_path: Path) -> None:
    worker_dir = dirs(tmp_path / "logs", tmp_path / "private").worker_dir(3, 5)
    below = Path("run", "round-3", "n", "rank-5")
    private = tmp_path / "private" / "logs" / below
    assert private.is_dir()
    assert worker_dir.error_file == str(private / "error.json")
    assert not list((tmp_path / "logs").iterdir())  # it may hang: another thread's
    worker_dir.make()
    directory = tmp_path / "logs" / below
    assert directory.is_dir()
    assert worker_dir.log("stdout") == str(directory / "stdout.log")
    assert worker_dir.filtered("stderr") == str(directory.parent / "filtered_stderr.log")


def test_nothing_that_exists_is_touched_or_reused(tmp_path: Path) -> None:
    first = dirs(tmp_path, tmp_path / "private").worker_dir(1, 0)
    Path(first.log("stdout")).write_text("precious")
    # Another agent of the same name, and a later job of the same run id.
    for number in (2, 3):
        worker_dir = dirs(tmp_path, tmp_path / "private").worker_dir(1, 0)
        assert own(worker_dir) == tmp_path / "run" / "round-1" / f"n-{number}" / "rank-0"
    assert Path(first.log("stdout")).read_text() == "precious"


def test_a_rank_that_is_started_again_in_its_round_gets_another(tmp_path: Path) -> None:
    logs = dirs(tmp_path, tmp_path / "private")
    made = [logs.worker_dir(*place) for place in ((1, 0), (1, 1), (1, 0), (2, 0))]
    expected = ["round-1/n/rank-0", "round-1/n/rank-1", "round-1/n/rank-0-2", "round-2/n/rank-0"]
    assert [str(own(worker_dir).relative_to(tmp_path / "run")) for worker_dir in made] == expected
    private = tmp_path / "private" / "logs" / "run"
    assert [str(Path(worker_dir.directory).relative_to(private)) for worker_dir in made] == expected


def test_an_error_is_copied_when_its_worker_has_ended(tmp_path: Path) -> None:
    logs = dirs(tmp_path / "logs", tmp_path / "private")
    well, failed = logs.worker_dir(1, 0), logs.worker_dir(1, 1)
    Path(failed.error_file).write_text("{}")
    for worker_dir in (well, failed):
        worker_dir.make()
        worker_dir.end()
    assert not well.published
    assert Path(failed.published) == own(failed) / "error.json"
    assert Path(failed.published).read_text() == "{}"
    assert not list(own(well).iterdir())


def test_an_error_that_cannot_be_copied_stays_where_it_is(tmp_path: Path) -> None:
    worker_dir = dirs(tmp_path / "logs", tmp_path / "private").worker_dir(1, 0)
    Path(worker_dir.error_file).write_text("{}")
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").touch()
    for action in (worker_dir.make, worker_dir.end):
        with pytest.raises(NotADirectoryError):
            action()
    assert not worker_dir.published
    assert Path(worker_dir.error_file).read_text() == "{}"
    # It is tried again with each file, and with each worker.
    (tmp_path / "logs").unlink()
    worker_dir.make()
    assert own(worker_dir).is_dir()
    shutil.rmtree(tmp_path / "logs")
    assert own(worker_dir).is_dir()


def test_a_worker_gets_a_place_without_room_for_it(tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    worker_dir = dirs(None, tmp_path / "private").worker_dir(1, 0)
    assert read_error_file(worker_dir.error_file) is None


@pytest.mark.parametrize(
    ("name", "directory"), [("a/b", "a_b"), ("../..", "_.."), ("..", "_"), ("", "_"), (".x", "x")]
)
def test_a_name_is_one_directory(tmp_path: Path, name: str, directory: str) -> None:
    logs = dirs(tmp_path, tmp_path / "private", run_id=name)
    worker_dir = logs.worker_dir(1, 0)
    assert own(worker_dir).is_relative_to(tmp_path / directory)
    assert Path(worker_dir.directory).is_relative_to(tmp_path / "private" / "logs" / directory)


def test_long_names_are_cut_and_stay_different(tmp_path: Path) -> None:
    logs, private = tmp_path / "logs", tmp_path / "private"
    names = ["r" * 255, "r" * 300, "r" * 299 + "s", "ä" * 200]
    for name in names:
        for _ in range(2):  # the second one is given a number
            worker_dir = dirs(logs, private, run_id=name, node_name=name).worker_dir(1, 0)
            assert own(worker_dir).is_dir()
            assert Path(worker_dir.directory).is_dir()
    assert len(list(logs.iterdir())) == len(names)
    kept = "r" * 240  # as long as ever
    worker_dir = dirs(logs, private, run_id=kept).worker_dir(1, 0)
    assert own(worker_dir).is_relative_to(logs / kept)


def test_without_a_log_directory(tmp_path: Path) -> None:
    worker_dir = dirs(None, tmp_path).worker_dir(1, 0)
    assert Path(worker_dir.directory).is_relative_to(tmp_path)
    assert not worker_dir.logged
    kept = dirs(None, tmp_path, output={"tee": {-1: 3}})
    assert kept.root is not None
    assert not kept.root.is_relative_to(tmp_path)
    kept.root.rmdir()


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=rf"--log-dir {path} cannot be used \(.*\): name a"):
            dirs(path, Path("unused"))


def rounds(root: Path) -> list[str]:
    return sorted((p.parent.name for p in root.glob("run/round-*/n")), key=lambda n: int(n[6:]))


def start(logs: LogDirs, round_number: int, rank: int = 0) -> WorkerDir:
    worker_dir = logs.worker_dir(round_number, rank)
    worker_dir.make()
    return worker_dir


def end(logs: LogDirs, worker_dir: WorkerDir) -> None:
    logs.ended(worker_dir)
    worker_dir.end()


def test_the_logs_of_the_first_round_and_of_the_newest_are_kept(tmp_path: Path) -> None:
    logs = dirs(tmp_path, tmp_path / "private", output={"keep": 3})
    (tmp_path / "run" / "round-2" / "other").mkdir(parents=True)
    for number in range(1, 7):
        worker_dir = start(logs, number)
        Path(worker_dir.log("stdout")).write_text("text")
        end(logs, worker_dir)
    assert rounds(tmp_path) == ["round-1", "round-5", "round-6"]
    assert rounds(tmp_path / "private" / "logs") == ["round-1", "round-5", "round-6"]
    # What another node has written is not touched.
    assert (tmp_path / "run" / "round-2" / "other").is_dir()
    assert not (tmp_path / "run" / "round-3").exists()


def test_the_logs_of_a_living_worker_and_of_the_last_that_ended_are_kept(tmp_path: Path) -> None:
    logs = dirs(tmp_path, tmp_path / "private", output={"keep": 2})
    old = {number: start(logs, number) for number in range(1, 4)}
    older = start(logs, 2, rank=1)
    for number in range(4, 8):
        end(logs, start(logs, number))
    for root in (tmp_path, tmp_path / "private" / "logs"):
        assert rounds(root) == [f"round-{n}" for n in (1, 2, 3, 6, 7)]
    # An old worker fails, and ends the job before or after another start.
    end(logs, old[2])
    end(logs, older)
    start(logs, 8)
    for root in (tmp_path, tmp_path / "private" / "logs"):
        assert "round-2" in rounds(root)


def test_all_logs_are_kept_if_that_is_wanted(tmp_path: Path) -> None:
    logs = dirs(tmp_path, tmp_path / "private", output={"keep": 0})
    for number in range(1, 200):
        end(logs, start(logs, number))
    assert len(rounds(tmp_path)) == 199


@pytest.mark.parametrize("keep", [0, 100])
def test_errors_in_the_private_directory_do_not_pile_up(tmp_path: Path, keep: int) -> None:
    """Whatever is kept of the logs: what has been read of them is in memory, and in the logs."""
    private = tmp_path / "private"
    logs = dirs(tmp_path / "logs", private, output={"keep": keep})
    for number in range(1, 41):
        worker_dir = logs.worker_dir(number, 0)
        Path(worker_dir.error_file).write_text("{}")
        worker_dir.end()
        logs.ended(worker_dir)
    assert Path(worker_dir.error_file).is_file(), "the last one, which may end the job"
    assert len(list(private.rglob("error.json"))) < 10
    assert len(list((tmp_path / "logs").rglob("error.json"))) == 40, "but what was asked for"
