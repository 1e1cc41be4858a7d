"""``elastic-run`` up to the agent; what it says of mistakes is in test_mistakes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.cli.run.elastic_run import main
from elastic_runtime.cli.run.local_nodes import combined_exit_code, watched
from elastic_runtime.cli.run.worker_program import check_entry
from elastic_runtime.config import COMMAND, MODULE, SCRIPT, Entry
from elastic_runtime.errors import EXIT_CRASHED, EXIT_LEFT, EXIT_USAGE, UsageError
from tests.processes import PROGRAM_TIMEOUT
from tests.unit.programs import python

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.unit.cli.stand_ins import StandIns


@pytest.fixture(autouse=True)
def calm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PET_", "ELASTIC_")) and name != "ELASTIC_TEST_MARK":
            monkeypatch.delenv(name)


def test_an_address_of_another_machine_cannot_be_listened_at(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--listen", "192.0.2.7:29400", "train.py"]) == 2
    assert "cannot listen at 192.0.2.7, port 29400" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, words in (("--help", "usage: elastic-run"), ("--version", "elastic-run ")):
        with pytest.raises(SystemExit) as ended:
            main([flag])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(words)


_AS_INIT = """
import os, signal, sys
from elastic_runtime.cli.run import elastic_run

elastic_run._main = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or 0
sys.exit(elastic_run.main([]))
"""


def test_the_first_process_of_a_container_can_be_ended_while_it_starts() -> None:
    isolate = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*isolate, "true"], check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    ended = subprocess.run(
        [*isolate, sys.executable, "-c", _AS_INIT], timeout=PROGRAM_TIMEOUT, check=False
    )
    assert ended.returncode == EXIT_LEFT


def test_a_batch_script_of_one_node_tells_it_where_it_is(folder: Path, stand_ins: StandIns) -> None:
    stand_ins.put("srun", "")
    stand_ins.put("scontrol", "exit 1")
    task = {"SLURM_JOB_ID": "21", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "x"}
    nodes = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1"}
    options = "--requeue --listen 127.0.0.1:0 --node-topology z/r train.py"
    python("-m", "elastic_runtime", *options.split(), **task, **nodes)
    (started,) = (call for call in stand_ins.calls() if call.startswith("srun"))
    assert "--node-topology z/r" in started


HOST_NODE = "-m", "elastic_runtime.cli.run.host_node", "command"


def test_a_broken_package_is_no_failed_job(tmp_path: Path) -> None:
    """Else the job would be taken for over, on all machines."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart is not there')")
    ended = python(*HOST_NODE, "train.py", PYTHONPATH=str(tmp_path))
    assert ended.returncode == EXIT_CRASHED
    assert "libcudart is not there" in ended.stderr


def test_a_wrong_flag_is_said() -> None:
    ended = python(*HOST_NODE, "--nonsense", "train.py")
    assert ended.returncode == EXIT_USAGE
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0, 0], 0),
        ([0, -9, 0], 0),  # a node was killed, the others ended well: the job is done
        ([5, 0, 4], 0),
        ([1, 5, -9], 1),
        ([3, 3], 3),
        ([5, 4, 3], 3),
        ([5, 5], 5),
        ([2, 2], 2),
        ([-9, -9], 137),
        ([-15, -15], 143),
        ([], 1),
    ],
)
def test_one_exit_code_of_many(codes: list[int], expected: int) -> None:
    assert combined_exit_code(codes) == expected


@given(st.lists(st.integers(-15, 5), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(codes: list[int], chance: random.Random) -> None:
    shuffled = list(codes)
    chance.shuffle(shuffled)
    assert combined_exit_code(codes) == combined_exit_code(shuffled)
    assert (combined_exit_code(codes) == 0) == (0 in codes)


def test_a_signal_that_is_ignored_from_the_start_is_no_request() -> None:
    """The nodes ignore it, too: counted, it would make the next one a second request."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        waits = watched(["SIGTERM", "SIGHUP"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP not in waits
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= waits
    assert signal.SIGHUP in watched(["SIGTERM"])


_SPOILED = "raise SystemExit('a package was imported just to look for a module')"


@pytest.fixture
def modules(folder: Path) -> Path:
    """A package with a module, one that can be run, one that cannot be imported."""
    for name in ("plain", "runnable"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(_SPOILED)
    (folder / "plain" / "train.py").write_text("")
    (folder / "runnable" / "__main__.py").write_text("")
    (folder / "namespace").mkdir()
    (folder / "namespace" / "train.py").write_text("")
    return folder


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (SCRIPT, "train.py"),
        (SCRIPT, "./train.py"),
        (MODULE, "train"),
        (MODULE, "plain.train"),
        (MODULE, "runnable"),
        (MODULE, "namespace.train"),
        (MODULE, "json.tool"),
        (COMMAND, "sh"),
        (COMMAND, sys.executable),
    ],
)
def test_what_can_be_run(modules: Path, kind: str, target: str) -> None:
    check_entry(Entry(kind, target))


def test_a_far_fetched_guess_is_not_made(modules: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check_entry(Entry(SCRIPT, "trial2.py"))
    assert "did you mean" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_may_not_be_read(folder: Path) -> None:
    (folder / "train.py").chmod(0)
    with pytest.raises(UsageError, match="cannot be read"):
        check_entry(Entry(SCRIPT, "train.py"))


def test_modules_of_another_interpreter_are_its_own_affair() -> None:
    check_entry(Entry(MODULE, "nothing.here", python=sys.executable))
