"""Log directories: one for each round, node and rank, and none used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.agent.logdir import LogDirs
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Output
from elastic_runtime.errors import UsageError


def config(log_dir: Path | None, **settings: object) -> JobConfig:
    output = Output(log_dir=str(log_dir) if log_dir else None, **settings)  # type: ignore[arg-type]
    entry = Entry(SCRIPT, "train.py")
    return JobConfig(entry, Endpoint("c10d", ("h:1",)), "run", node_name="n", output=output)


def test_the_directory_names_round_node_and_rank(tmp_path: Path) -> None:
    place = LogDirs(config(tmp_path / "logs"), "unused").place(3, 5)
    directory = tmp_path / "logs" / "run" / "round-3" / "n" / "rank-5"
    assert directory.is_dir()
    assert place.error_file == str(directory / "error.json")
    assert place.log("stdout") == str(directory / "stdout.log")
    assert place.filtered("stderr") == str(directory.parent / "filtered_stderr.log")


def test_nothing_that_exists_is_touched_or_reused(tmp_path: Path) -> None:
    first = LogDirs(config(tmp_path), "unused").place(1, 0)
    Path(first.log("stdout")).write_text("precious")
    # Another agent of the same name, and a later job of the same run id.
    for number in (2, 3):
        place = LogDirs(config(tmp_path), "unused").place(1, 0)
        assert place.directory == str(tmp_path / "run" / "round-1" / f"n-{number}" / "rank-0")
    assert Path(first.log("stdout")).read_text() == "precious"


def test_a_rank_that_is_started_again_in_its_round_gets_another(tmp_path: Path) -> None:
    logs = LogDirs(config(tmp_path), "unused")
    places = [logs.place(1, 0), logs.place(1, 1), logs.place(1, 0), logs.place(2, 0)]
    assert [str(Path(p.directory).relative_to(tmp_path / "run")) for p in places] == [
        "round-1/n/rank-0",
        "round-1/n/rank-1",
        "round-1/n/rank-0-2",
        "round-2/n/rank-0",
    ]


@pytest.mark.parametrize(
    ("name", "directory"), [("a/b", "a_b"), ("../..", "_.."), ("..", "_"), ("", "_"), (".x", "x")]
)
def test_a_name_is_one_directory(tmp_path: Path, name: str, directory: str) -> None:
    place = LogDirs(config(tmp_path).with_(run_id=name), "unused").place(1, 0)
    assert Path(place.directory).is_relative_to(tmp_path / directory)


def test_long_names_are_cut_and_stay_different(tmp_path: Path) -> None:
    names = ["r" * 255, "r" * 300, "r" * 299 + "s", "ä" * 200]
    for name in names:
        settings = config(tmp_path).with_(run_id=name, node_name=name)
        for _ in range(2):  # the second one is given a number
            assert Path(LogDirs(settings, "unused").place(1, 0).directory).is_dir()
    assert len(list(tmp_path.iterdir())) == len(names)
    kept = "r" * 240  # as long as ever
    place = LogDirs(config(tmp_path).with_(run_id=kept), "unused").place(1, 0)
    assert Path(place.home).is_relative_to(tmp_path / kept)


def test_without_a_log_directory(tmp_path: Path) -> None:
    place = LogDirs(config(None), str(tmp_path)).place(1, 0)
    assert Path(place.directory).is_relative_to(tmp_path)
    kept = LogDirs(config(None, tee={-1: 3}), str(tmp_path))
    assert not kept.root.is_relative_to(tmp_path)
    kept.root.rmdir()


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=rf"--log-dir {path} cannot be used \(.*\): name a"):
            LogDirs(config(path), "unused")


def rounds(root: Path) -> list[str]:
    return sorted((p.parent.name for p in root.glob("run/round-*/n")), key=lambda n: int(n[6:]))


def test_the_logs_of_the_first_round_and_of_the_newest_are_kept(tmp_path: Path) -> None:
    logs = LogDirs(config(tmp_path, keep=3), "unused")
    (tmp_path / "run" / "round-2" / "other").mkdir(parents=True)
    for number in range(1, 7):
        place = logs.place(number, 0)
        Path(place.log("stdout")).write_text("text")
        logs.ended(number, place.directory)
    assert rounds(tmp_path) == ["round-1", "round-5", "round-6"]
    # What another node has written is not touched.
    assert (tmp_path / "run" / "round-2" / "other").is_dir()
    assert not (tmp_path / "run" / "round-3").exists()


def test_the_logs_of_a_living_worker_and_of_the_last_that_ended_are_kept(tmp_path: Path) -> None:
    logs = LogDirs(config(tmp_path, keep=2), "unused")
    for number in range(1, 4):
        logs.place(number, 0)
    old = logs.place(2, 1)
    for number in range(4, 8):
        logs.ended(number, logs.place(number, 0).directory)
    assert rounds(tmp_path) == [f"round-{n}" for n in (1, 2, 3, 6, 7)]
    # An old worker fails, and ends the job before or after another start.
    logs.ended(2, str(tmp_path / "run" / "round-2" / "n" / "rank-0"))
    logs.ended(2, old.directory)
    logs.place(8, 0)
    assert "round-2" in rounds(tmp_path)


def test_all_logs_are_kept_if_that_is_wanted(tmp_path: Path) -> None:
    logs = LogDirs(config(tmp_path, keep=0), "unused")
    for number in range(1, 200):
        logs.ended(number, logs.place(number, 0).directory)
    assert len(rounds(tmp_path)) == 199
