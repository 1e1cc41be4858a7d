"""What a worker's end is called."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.lifecycle.fault_classification import WorkerError, classify
from elastic_runtime.protocol.records import FAILED, KILLED, START


@pytest.mark.parametrize(
    ("code", "kind", "signature"),
    [
        (-9, KILLED, "SIGKILL"),
        (-15, KILLED, "SIGTERM"),
        (-11, FAILED, "SIGSEGV"),
        (-6, FAILED, "SIGABRT"),
        (3, FAILED, "exit code 3"),
    ],
)
def test_an_end_without_an_error_file(code: int, kind: str, signature: str) -> None:
    report = classify(4, 2, code, None, step=7, lifetime=1.5)
    assert (report.kind, report.signature, report.consequence) == (kind, signature, False)
    assert (report.round, report.rank, report.exit_code, report.step) == (4, 2, code, 7)
    assert signature in report.reason
    assert "worker 2" in report.reason


@pytest.mark.parametrize(
    ("message", "kind", "echo"),
    [
        ("ValueError: bad shape", FAILED, False),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer", FAILED, True),
        ("DistBackendError: NCCL error in: init.cc", FAILED, True),
        ("RuntimeError: CUDA out of memory", FAILED, False),
        ("ValueError: Connection closed by peer", FAILED, False),
        ("RuntimeError: my data server data01:9000: Connection refused", FAILED, False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", FAILED, False),
        ("DistNetworkError: The server socket has failed to bind, EADDRINUSE", START, False),
    ],
)
def test_an_error_is_a_cause_or_an_echo(message: str, kind: str, echo: bool) -> None:
    report = classify(1, 0, 1, WorkerError(message, "Traceback …"))
    assert (report.kind, report.consequence) == (kind, echo)
    assert report.traceback == "Traceback …"


@pytest.mark.parametrize("echo", [True, False])
def test_what_the_worker_knows_of_its_error_counts_more_than_its_words(echo: bool) -> None:
    said = (
        "the ranks did not meet" if echo else "[gloo/transport/tcp/pair.cc:547] Connection closed"
    )
    report = classify(1, 0, 1, WorkerError(f"RuntimeError: {said}", echo=echo))
    assert report.consequence is echo
    assert said in report.reason


def test_moving_parts_do_not_make_errors_differ() -> None:
    first = classify(1, 0, 1, WorkerError("KeyError: <object at 0x7f12> in row 12"))
    second = classify(2, 3, 1, WorkerError("KeyError: <object at 0x9a> in row 7"))
    third = classify(2, 3, 1, WorkerError("IndexError: <object at 0x9a> in row 7"))
    assert first.signature == second.signature != third.signature


def test_a_long_reason_ends_with_a_whole_word() -> None:
    report = classify(1, 0, 1, WorkerError(f"KeyError: {'epoch ' * 100}"))
    assert report.reason.startswith("worker 0: KeyError: epoch epoch")
    assert report.reason.endswith(" epoch ...")
    assert len(report.reason) < 200


def test_only_the_end_of_a_long_traceback_is_kept() -> None:
    report = classify(1, 0, 1, WorkerError("E: x", "a" * 100_000 + "the end"))
    assert report.traceback.endswith("the end")
    assert len(report.traceback) < 10_000
