"""What training scripts do in a worker, and what a fork must not share."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tests.processes import command, wait_for

if TYPE_CHECKING:
    from tests.integration.workers.worker_harness import ScriptHarness


LIBRARIES = """
import multiprocessing, random, sys
print([name in sys.modules for name in ("torch._dynamo", "numpy", "grpc")])
import numpy, torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def child(index, text): print(text, index, __name__)

if __name__ == "__main__":
    torch.set_num_threads(2)
    print("torch", float((torch.ones(512, 512) @ torch.ones(512, 512)).sum()))
    print("numpy", float((numpy.ones((512, 512)) @ numpy.ones((512, 512))).sum()))
    print([batch.tolist() for batch in DataLoader(range(8), 2, num_workers=2)])
    mp.spawn(child, args=("child",), nprocs=1)
    key = multiprocessing.current_process().authkey.hex()
    print("drawn", numpy.random.rand(), random.random(), key)
"""


def test_libraries_are_there_already_and_work_and_draw_other_numbers(warm: ScriptHarness) -> None:
    warm.write(LIBRARIES)
    assert [ended.code for ended in warm.run()] == [0, 0], warm.story()
    total = 512.0**3
    lines = ["[True, True, False]", f"torch {total}", f"numpy {total}", "child 0 __mp_main__"]
    for rank in (0, 1):
        for line in (*lines, "[[0, 1], [2, 3], [4, 5], [6, 7]]", "drawn"):
            warm.prints(f"[default{rank}]:{line}")
    shown = warm.stdout.read_text().splitlines()
    first, second = (line.split()[1:] for line in shown if ":drawn" in line)
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_it_is_listed_as_what_it_runs(warm: ScriptHarness) -> None:
    warm.write("import time; print('in place'); time.sleep(1000)")
    warm.start(0)
    pid = warm.started()
    warm.prints("in place")
    assert command(pid) == f"{sys.executable} -u {warm.script} --lr 0.1 local=0"
    warm.workers.kill()
    warm.exited()


def test_environment_is_the_workers_own(
    harness: ScriptHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Set after the server was started: a worker must have it; taken away: it must not.
    monkeypatch.setenv("SET_SINCE", "yes")
    monkeypatch.delenv("HOME")
    harness.write("import os; print(sorted({'RANK', 'SET_SINCE', 'HOME'} & set(os.environ)))\n")
    assert [ended.code for ended in harness.run()] == [0, 0], harness.story()
    for rank in (0, 1):
        harness.prints(f"[default{rank}]:['RANK', 'SET_SINCE']")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f():\n    raise ValueError('no such thing')\nf()\n", "ValueError: no such thing"),
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("import there_is_no_such_module\n", "ModuleNotFoundError: No module named"),
    ],
)
def test_an_error_leaves_its_traceback(harness: ScriptHarness, source: str, said: str) -> None:
    harness.write(source)
    (spec,) = harness.start(0)
    (ended,) = harness.exited()
    # As torch reads it for its report of the root cause.
    failure = ProcessFailure(0, ended.pid, ended.code, spec.worker_dir.error_file)
    assert ended.code == 1
    assert failure.message["message"].startswith(said)
    trace = failure.message["extraInfo"]["py_callstack"]
    assert said in trace and "worker_main.py" not in trace


def test_an_error_that_torch_has_recorded_is_left_alone(warm: ScriptHarness) -> None:
    warm.write(
        "from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record\n"
        "class Own(ErrorHandler):\n"
        "    def record_exception(self, error):\n"
        "        import json, os\n"
        "        with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
        "            json.dump({'message': 'own', 'timestamp': 1}, file)\n"
        "def main(): raise ValueError('no')\n"
        "record(main, error_handler=Own())()\n"
    )
    (spec,) = warm.start(0)
    (ended,) = warm.exited()
    assert ended.code == 1
    with open(spec.worker_dir.error_file) as file:
        assert json.load(file)["message"] == "own"


def test_a_crash_leaves_a_native_trace(warm: ScriptHarness) -> None:
    warm.write("import faulthandler; faulthandler._sigsegv()")
    (ended,) = warm.run(0)
    assert ended.code == -11
    wait_for(
        lambda: "Fatal Python error: Segmentation fault" in warm.stderr.read_text(),
        5,
        "a dump",
        warm.story,
    )
