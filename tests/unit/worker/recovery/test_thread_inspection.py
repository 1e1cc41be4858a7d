"""Where a thread is, and how it is got out of there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.worker.recovery import thread_inspection
from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PATIENCE = 60.0


class Out(BaseException):
    """What is thrown."""


def started(target: Callable[[], None], runs: threading.Event) -> tuple[threading.Thread, int]:
    """A thread that has come so far, and its number."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    assert runs.wait(PATIENCE)
    assert thread.ident is not None
    return thread, thread.ident


def test_a_thread_that_catches_everything_else_is_thrown_out() -> None:
    runs, ends = threading.Event(), threading.Event()
    found: list[BaseException] = []

    def script() -> None:
        try:
            while True:
                runs.set()
        except Exception:
            return
        except BaseException as error:
            found.append(error)
        finally:
            ends.set()

    _, number = started(script, runs)
    thread_inspection.throw(number, Out)
    assert ends.wait(PATIENCE)
    assert [type(error) for error in found] == [Out]


def test_the_place_is_that_of_the_script_and_no_collective() -> None:
    runs, stop = threading.Event(), threading.Event()

    def script() -> None:
        runs.set()
        while not stop.is_set():
            pass

    thread, number = started(script, runs)
    seen = [thread_inspection.of(number) for _ in range(50)]
    stop.set()
    thread.join(PATIENCE)
    assert not any(collective for collective, _ in seen)
    assert any("test_thread_inspection.py" in where and "in script" in where for _, where in seen)
    assert thread_inspection.of(0) == (False, "nowhere")


def _raised_by(*files: str) -> TracebackType | None:
    """The traceback of an error; the functions in these files have called one another."""
    call: Callable[[], None] = lambda: {}["missing"]  # noqa: E731
    for file in reversed(files):
        namespace: dict[str, Any] = {"call": call}
        exec(compile("def step():\n    call()\n", file, "exec"), namespace)
        call = namespace["step"]
    with pytest.raises(KeyError) as caught:
        call()
    assert caught.value.__traceback__ is not None
    return caught.value.__traceback__.tb_next  # without this function itself


OURS = thread_inspection.__file__
TORCH = "/lib/site-packages/torch/nn/linear.py"


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ((OURS, OURS, "/home/me/train.py", TORCH), "/home/me/train.py"),
        ((OURS, "/home/me/train.py", OURS), "/home/me/train.py"),
        (("/home/me/train.py", OURS), "/home/me/train.py"),
        ((OURS, TORCH), OURS),
    ],
)
def test_an_error_is_shown_from_the_script_on(files: tuple[str, ...], first: str) -> None:
    trace = _raised_by(*files)
    begins = thread_inspection.in_script(trace)
    assert begins is not None
    assert begins.tb_frame.f_code.co_filename == first


def test_whoever_waits_for_the_gpu_waits_for_others() -> None:
    ready = threading.Event()
    done: list[bool] = []
    namespace: dict[str, Any] = {"ready": ready, "done": done}
    code = "def synchronize():\n    ready.set()\n    while not done:\n        pass\n"
    exec(compile(code, "/lib/site-packages/torch/cuda/streams.py", "exec"), namespace)
    thread, number = started(namespace["synchronize"], ready)
    try:
        # It may still be inside of set().
        processes.wait_for(lambda: thread_inspection.of(number)[0], PATIENCE, "the GPU")
    finally:
        done.append(True)
        thread.join()


def test_a_place_that_a_library_has_made_is_not_shown() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", "<string>", "exec"), {})  # as the __init__ of a dataclass
    assert thread_inspection.met(caught.value.__traceback__).startswith(
        "test_thread_inspection.py:"
    )
