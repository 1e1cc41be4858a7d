"""``elastic_runtime.launch``: a function on every worker, from Python."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime import Endpoint, JobConfig, launch
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os
import sys
from dataclasses import dataclass

from elastic_runtime import Endpoint, Entry, JobConfig, launch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


@dataclass
class Number:
    value: int


def square(base):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return Number(base.value**2), int(os.environ["RANK"]), total.item()


class Unreadable:
    def __reduce__(self):
        return refuse, ()


def refuse():
    raise ValueError("cannot be made here")


def give():
    return Unreadable()


def fail(marker):
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), 9)
    raise ValueError("a bad value")


if __name__ == "__main__":
    config = JobConfig(workers=2, max_restarts=0, log_format="json")
    if sys.argv[1] == "square":
        print("values", launch(config, square, Number(7)))
    elif sys.argv[1] == "give":
        try:
            launch(config, give)
        except ChildFailedError as error:
            print("failed", sorted(error.failures), "cannot be made here" in str(error))
    else:
        try:
            launch(config, fail, sys.argv[2])
        except ChildFailedError as error:
            print("failed", sorted(error.failures), "a bad value" in str(error))
"""


def run(tmp_path: Path, *args: str, text: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    return subprocess.run(
        [sys.executable, str(program), *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.golden("elastic_runtime.launch returns the values of the ranks")
def test_values_come_back_by_rank(tmp_path: Path) -> None:
    done = run(tmp_path, "square")
    assert done.returncode == 0, done.stderr
    number = "Number(value=49)"
    assert f"values {{0: ({number}, 0, 1.0), 1: ({number}, 1, 1.0)}}" in done.stdout


def test_a_failure_comes_back_as_torchs_error_after_a_kill_that_cost_nothing(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "fail", str(tmp_path / "marker"))
    assert done.returncode == 0, done.stderr
    assert "True" in done.stdout.split("failed", 1)[1], done.stdout
    assert '"round": 2' in done.stderr


def test_a_value_that_cannot_be_read_is_a_failure_of_its_rank(tmp_path: Path) -> None:
    done = run(tmp_path, "give")
    assert done.returncode == 0, done.stderr
    assert re.search(r"failed \[.+\] True", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("what", ["lambda", "unpicklable"])
def test_a_function_that_cannot_be_sent_is_named(tmp_path: Path, what: str) -> None:
    call = "lambda: 1" if what == "lambda" else "print, open(__file__)"
    definitions = PROGRAM.split('if __name__ == "__main__":')[0]
    main = f"""
if __name__ == "__main__":
    from elastic_runtime.errors import UsageError
    from elastic_runtime.rendezvous.stores.embedded.store_server import StoreServer
    from elastic_runtime.system.listening import listen

    store = StoreServer(listen("127.0.0.1"))
    endpoint = Endpoint("c10d", (f"127.0.0.1:{{store.port}}",), hosted_here=True)
    config = JobConfig(Entry("function", ""), endpoint, "x", log_format="json", cold=True)
    try:
        launch(config, {call})
    except UsageError as error:
        print("usage:", error)
"""
    done = run(tmp_path, text=definitions + main)
    assert done.stdout.startswith("usage:"), done.stdout + done.stderr
    assert "top level of a module" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_job_in_a_shared_store_needs_a_name() -> None:
    config = JobConfig(endpoint=Endpoint("etcd", ("127.0.0.1:1",)))
    with pytest.raises(UsageError, match="give JobConfig a run_id"):
        launch(config, print)
