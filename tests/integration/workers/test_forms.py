"""Everything that a worker can be besides a script: a module, a command, a function."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_runtime.config import COMMAND, FUNCTION, MODULE, SCRIPT, Entry, Output

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_module_of_a_package(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    package = tmp_path / "training" / "digits"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("print('package', __name__)\n")
    (package / "model.py").write_text("import numpy\nname = 'a model'\n")
    (package / "__main__.py").write_text(
        "import sys\n"
        "from . import model\n"
        "from .model import name\n"
        "print(name, __name__, __package__, __spec__.name, sys.argv, sys.path[0])\n"
        "raise ValueError('the end')\n"
    )
    monkeypatch.chdir(tmp_path)
    entry = Entry(MODULE, "training.digits", ("--lr", "1"))
    harness = begin(entry, cold=kind == "cold", preload=("there.is.none", "wave"))
    ready = harness.ready()
    assert not ready.why_cold
    if kind == "warm":
        assert "wave" in ready.modules
        assert ready.skipped == ("there.is.none: ModuleNotFoundError: No module named 'there'",)
    assert ("numpy" in ready.modules) == (kind == "warm")  # found by way of model.py
    (ended,) = harness.run(0)
    main = package / "__main__.py"
    harness.prints(
        f"a model __main__ training.digits training.digits.__main__"
        f" {[str(main), '--lr', '1']} {tmp_path}\n"
    )
    assert ended.code == 1
    assert "worker_main.py" not in harness.stderr.read_text()


def test_a_module_that_is_not_there(begin: Begin) -> None:
    harness = begin(Entry(MODULE, "there.is.none"), cold=True)
    (ended,) = harness.run(0)
    assert ended.code == 1
    assert "No module named" in harness.stderr.read_text()


def test_a_neighbour_that_is_named_like_a_loaded_module_is_found(
    begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "wave.py").write_text("name = 'the wave beside the script'\n")
    script = tmp_path / "script.py"
    script.write_text("import wave; print(wave.name)\n")
    harness = begin(Entry(SCRIPT, str(script)), preload=("wave",))
    assert harness.ready().why_cold.startswith(f"{tmp_path / 'wave.py'} has the name of a module")
    (ended,) = harness.run(0)
    assert ended.code == 0, harness.story()
    harness.prints("the wave beside the script")


def test_command(begin: Begin) -> None:
    script = 'echo "rank $RANK of $0"; cat; exit 4'
    harness = begin(Entry(COMMAND, "bash", ("-c", script, "x${local_rank}")), workers=2)
    assert [ended.code for ended in harness.run()] == [4, 4]
    harness.prints("[default0]:rank 0 of x0\n")
    harness.prints("[default1]:rank 1 of x1\n")


def test_a_command_that_is_not_there(begin: Begin) -> None:
    harness = begin(Entry(COMMAND, "there-is-no-such-program"))
    (spec,) = harness.start(0)
    (ended,) = harness.exited()
    assert (ended.code, ended.pid) == (127, 0)
    failure = ProcessFailure(0, 0, ended.code, spec.worker_dir.error_file)
    assert "there-is-no-such-program cannot be started" in failure.message["message"]


def test_another_interpreter(begin: Begin, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.stdout.write_through, sys.argv[1:])\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\necho "wrapped"\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    harness = begin(Entry(SCRIPT, str(script), ("a",), python=str(wrapper)))
    (ended,) = harness.run(0)
    assert ended.code == 0
    harness.prints("wrapped")
    harness.prints("True ['a']")


def describe(prefix: str, numbers: dict[str, Any]) -> dict[str, Any]:
    import os

    rank = int(os.environ["RANK"])
    print("called", prefix)
    if prefix == "fail":
        raise ValueError("as asked")
    return {"rank": rank, "main": __name__, "sum": sum(numbers["values"])}


@pytest.mark.parametrize("cold", [False, True])
def test_function(begin: Begin, cold: bool) -> None:
    entry = Entry(FUNCTION, "describe", ("p", {"values": range(10)}), function=describe)
    harness = begin(entry, workers=2, cold=cold)
    for _ in range(2):  # the same payload serves every start
        assert [ended.code for ended in harness.run()] == [0, 0], harness.story()
        for rank in (0, 1):
            value = harness.workers.return_value(rank)
            assert value == {"rank": rank, "main": __name__, "sum": 45}
    harness.prints("[default1]:called p")


def test_a_function_that_fails(begin: Begin) -> None:
    entry = Entry(FUNCTION, "describe", ("fail", {}), function=describe)
    harness = begin(entry, cold=True)
    (spec,) = harness.start(0)
    (ended,) = harness.exited()
    assert ended.code == 1
    assert harness.workers.return_value(0) is None
    failure = ProcessFailure(0, 0, ended.code, spec.worker_dir.error_file)
    assert failure.message["message"] == "ValueError: as asked"
    assert "worker_main.py" not in harness.stderr.read_text()


def test_where_output_goes(begin: Begin, tmp_path: Path) -> None:
    script = "echo out $RANK; echo err $RANK >&2; echo 'loss 1'"
    output = Output(
        log_dir=str(tmp_path / "logs"),
        redirects={0: 3},
        tee={1: 1},
        ranks=frozenset({0, 1}),
        stdout_filters=("loss",),
        prefix="<${role_name} ${local_rank}/${rank}> ",
    )
    entry = Entry(COMMAND, "bash", ("-c", script))
    harness = begin(entry, workers=3, output=output, node_name="n", run_id="a/b")
    assert [ended.code for ended in harness.run()] == [0, 0, 0]
    logs = tmp_path / "logs" / "a_b" / "round-1" / "n"
    harness.prints("<default 1/1> out 1\n<default 1/1> loss 1\n")
    assert (
        "2/2" not in harness.stdout.read_text() + harness.stderr.read_text()
    )  # rank 2 is not shown
    assert "0/0" not in harness.stdout.read_text() + harness.stderr.read_text()  # 0 is in its files
    assert harness.stderr.read_text() == "<default 1/1> err 1\n"
    assert (logs / "rank-0" / "stdout.log").read_text() == "out 0\nloss 1\n"
    assert (logs / "rank-0" / "stderr.log").read_text() == "err 0\n"
    assert (logs / "rank-1" / "stdout.log").read_text() == "out 1\nloss 1\n"
    chosen = (logs / "filtered_stdout.log").read_text().splitlines()
    assert sorted(chosen) == ["<default 0/0> loss 1", "<default 1/1> loss 1"]
    assert not list((logs / "rank-2").iterdir())


def test_a_log_is_complete_when_the_end_is_reported(begin: Begin) -> None:
    burst = "import os; os.write(1, b'x' * 60_000); os._exit(0)"
    harness = begin(Entry(COMMAND, sys.executable, ("-c", burst)), output=Output(tee={-1: 3}))
    for _ in range(5):
        (spec,) = harness.start(0)
        harness.exited()
        assert os.path.getsize(spec.worker_dir.log("stdout")) == 60_000
