"""Scripts that people have run unchanged.

Where a test runs several, it starts all of them before it waits for the first.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scripts.conftest import Run

    Start = Callable[..., Run]

TWO_NODES = ("--min", "2", "--max", "2", "--local-nodes", "2")
TWO_WORKERS = ("--nproc-per-node", "2")
BOTH_COUNTED = ("rank 0 of 2 counts 2", "rank 1 of 2 counts 2")


def assert_says(output: str, *texts: str) -> None:
    for text in texts:
        assert text in output, f"{text!r} is missing:\n{output[-4000:]}"


def test_address_from_the_environment(start: Start) -> None:
    warm = start(*TWO_NODES, "from_environment.py")
    cold = start(*TWO_WORKERS, "--cold", "from_environment.py")
    assert_says(warm.succeeds(), *BOTH_COUNTED)
    assert_says(cold.succeeds(), *BOTH_COUNTED)


def test_address_of_its_own(start: Start) -> None:
    nodes = start(*TWO_NODES, "own_address.py", str(free_port()))
    workers = start(*TWO_WORKERS, "tcp_address.py", str(free_port()))
    assert_says(nodes.succeeds(), *BOTH_COUNTED)
    assert_says(workers.succeeds(), *BOTH_COUNTED)


def test_processes_of_its_own(start: Start) -> None:
    spawns = start("spawns.py", str(free_port()))
    forks = start("forks.py")
    loads = start("loads.py")
    assert_says(spawns.succeeds(), *BOTH_COUNTED, "spawned and joined")
    # That no process is left, not even one in a session of its own, is part of "succeeds".
    assert_says(forks.succeeds(), "child speaks", "child ended with 0", "parent ends")
    assert_says(loads.succeeds(), "loaded 4950")


def test_module_and_program(start: Start) -> None:
    module = start("-m", "people.train", "--max", "7", "-m", "x")
    program = start(*TWO_WORKERS, "--no-python", "./program.sh", "one", "--two")
    assert_says(
        module.succeeds(), "__main__ in people: settings read, arguments ['--max', '7', '-m', 'x']"
    )
    assert_says(
        program.succeeds(),
        "rank 0 of 2 with 2 arguments: one --two",
        "rank 1 of 2 with 2 arguments: one --two",
    )


@pytest.mark.users_start
@pytest.mark.golden("arguments as for torchrun")
def test_arguments_as_for_torchrun(start: Start) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    line = f"--nproc_per_node=1 --nnodes=2 --rdzv_endpoint={endpoint} --rdzv_backend=c10d"
    nodes = [start(*line.split(), *"distributed.py --batch_size 8 30 2".split()) for _ in range(2)]
    output = "".join(node.succeeds() for node in nodes)
    assert_says(output, *BOTH_COUNTED, "epochs 30 save 2 batch 8")


def test_habits(start: Start) -> None:
    arguments = ("habits.py", "--max", "7", "a b")
    for run in (start(*arguments), start("--cold", *arguments)):
        assert_says(
            run.succeeds(),
            "neighbour says 42",
            "argv habits.py ['--max', '7', 'a b']",
            "pickled 7",
            "source @dataclass",
            "file habits.py, directory scripts",
        )


def test_leaves_abruptly(start: Start) -> None:
    well = start("leaves_abruptly.py", "0")
    badly = start("--cold", "--max-restarts", "0", "leaves_abruptly.py", "3")
    assert well.ends() == EXIT_DONE, well.story()
    assert_says(well.output, "leaving abruptly")
    assert badly.ends() == EXIT_FAILED, badly.story()
    assert_says(badly.output, "leaving abruptly", "exitcode  : 3")


def test_ignores_sigterm(start: Start) -> None:
    once = start("--cold", "--grace", "1", "ignores_sigterm.py")
    twice = start("--cold", "--grace", "600", "ignores_sigterm.py")
    for run in (once, twice):
        run.says("ignoring")
        run.process.send_signal(signal.SIGTERM)
    twice.process.send_signal(signal.SIGINT)
    assert once.ends() == EXIT_LEFT, once.story()
    assert twice.ends() not in (EXIT_DONE, EXIT_FAILED), twice.story()


def test_megabytes_without_a_newline(start: Start) -> None:
    assert start("talks.py").succeeds().count("#") == 4 << 20


def test_a_bug_before_the_first_step_ends_the_job_with_its_traceback(start: Start) -> None:
    run = start(*TWO_NODES, "fails.py")
    assert run.ends() == EXIT_FAILED, run.story()
    assert_says(run.output, "FileNotFoundError: no data at /nowhere/at/all", "fails.py")
    assert run.output.count("Root Cause") == 1, "two nodes in one terminal say it once"
