"""Whose fault an error in the training function is, and that nothing old lives on in it."""

from __future__ import annotations

import weakref
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from elastic_runtime.checkpoint.save.background_thread import failing_for_all
from elastic_runtime.errors import UsageError
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.groups.round_ranks import Interrupted
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery.error_classification import (
    forget,
    in_one_line,
    is_worlds_fault,
)
from tests.ranks import Outcome, kill_self, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSED = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4")
REFUSED = RuntimeError("my data server data01:9000: Connection refused")
NCCL = dist.DistBackendError("NCCL error in: init.cc")


def ranks(size: int = 2, *, interrupted: bool = False, building: bool = False) -> Any:
    """What is asked of the ranks of a round."""
    return SimpleNamespace(
        place=SimpleNamespace(size=size),
        interrupted=SimpleNamespace(is_set=lambda: interrupted),
        building=building,
    )


def _caused(error: Exception, cause: BaseException | None) -> Exception:
    error.__cause__ = cause
    return error


def _in_its_wake(error: Exception, context: BaseException) -> Exception:
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "worlds"),
    [
        (CLOSED, True),
        (NCCL, True),
        (_caused(ValueError("no batch"), CLOSED), True),
        (_in_its_wake(KeyError("grad"), NCCL), True),
        (_caused(_in_its_wake(KeyError("grad"), CLOSED), None), False),  # raise ... from None
        (ValueError("no batch"), False),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 7"), False),
        (_caused(RuntimeError("one"), ValueError("two")), False),
        # The script's own connections, whatever it calls what becomes of them.
        (REFUSED, False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (_in_its_wake(KeyError("batch"), ConnectionResetError(104, "reset by peer")), False),
        (OSError(32, "Broken pipe"), False),
        (RuntimeError("gloo: ProcessGroupNCCL Timed out waiting for the parameter server"), False),
    ],
)
def test_an_error_is_the_worlds_if_a_lost_peer_led_to_it(error: Exception, worlds: bool) -> None:
    assert is_worlds_fault(error, ranks()) is worlds
    assert not is_worlds_fault(error, ranks(1)), "who is alone has no peers"


def test_in_a_broken_round_everything_may_fail() -> None:
    for error, size in product((Interrupted(), ValueError("loss is nan"), REFUSED), (1, 2)):
        assert is_worlds_fault(error, ranks(size, interrupted=True))
    assert not is_worlds_fault(UsageError("return everywhere"), ranks(interrupted=True))


def test_while_the_ranks_connect_all_that_torch_meets_is_the_worlds_fault() -> None:
    odd = RuntimeError("words that nobody knows yet")
    assert is_worlds_fault(odd, ranks(building=True))
    assert in_one_line(odd, ranks(building=True)).startswith("the ranks could not connect (")
    assert not is_worlds_fault(odd, ranks(1, building=True)), "who is alone has no peers"
    assert not is_worlds_fault(ValueError("no such backend"), ranks(building=True))


# As NCCL 2.28 says it in torch 2.11: two ranks have chosen the same GPU; a peer was killed.
_SAME_GPU = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage \
(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"""
_NO_DETAILS = """NCCL error: unhandled system error, NCCL version 2.28.9
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:

"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_SAME_GPU, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"),
        (_NO_DETAILS, "NCCL error: unhandled system error, NCCL version 2.28.9"),
    ],
)
def test_of_what_nccl_says_the_cause_is_shown(text: str, said: str) -> None:
    error = dist.DistBackendError(text)
    assert f"(DistBackendError: {said}" in in_one_line(error, ranks())


def test_errors_in_a_circle_are_looked_at_once() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not is_worlds_fault(one, ranks())
    forget(one)


# What a survivor meets when its peer is killed: each in real processes, over real gloo.


def _barrier() -> None:
    dist.barrier()


def _wrapped() -> None:
    try:
        dist.barrier()
    except RuntimeError as error:
        raise ValueError("the ranks did not come together") from error


def _work() -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert work is not None
    work.wait()


def _backward() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), init_sync=False)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()


def _hook() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda grad: dist.all_reduce(grad))
    (weight * 2).sum().backward()


def _save() -> None:
    Peers(dist.group.WORLD).on_first(failing_for_all(lambda: "written"))


def _agree() -> None:
    agreement = Agreement(dist.group.WORLD)
    while True:
        agreement.step(lambda: Wish.TRAINS)


def survivor(meets: Callable[[], None]) -> tuple[bool, str]:
    """Whose fault it is that a peer is killed, and what is said of it."""
    dist.barrier()
    if dist.get_rank() == 1:
        kill_self()
    try:
        meets()
    except Exception as error:
        return is_worlds_fault(error, ranks()), in_one_line(error, ranks())
    raise AssertionError("it has met nothing")


@pytest.mark.parametrize("meets", [_barrier, _wrapped, _work, _backward, _hook, _save, _agree])
def test_whoever_loses_a_peer_is_not_to_blame(meets: Callable[[], None]) -> None:
    left, killed = run_ranks(2, survivor, meets)
    assert killed.signal
    assert left != Outcome(), left
    worlds, said = left.value
    assert worlds
    assert said.startswith("the connection to a peer is lost (")
    kind = "ValueError" if meets is _wrapped else "RuntimeError"
    assert f"({kind}: " in said
    assert "at test_error_classification.py:" in said, "the place in the script"


def test_what_torch_raises_of_a_script_that_is_wrong_is_the_scripts() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2).sum().backward()
    assert not is_worlds_fault(caught.value, ranks())


def test_what_an_error_has_passed_through_is_let_go() -> None:
    class Group:
        """Stands for a process group that a frame holds."""

        def __init__(self) -> None:
            groups.append(weakref.ref(self))

    groups: list[weakref.ref[Group]] = []

    def collective() -> None:
        group = Group()  # noqa: F841
        raise RuntimeError("Connection closed by peer")

    def train() -> None:
        group = Group()  # noqa: F841
        try:
            collective()
        except RuntimeError as error:
            raise ValueError("no step") from error

    with pytest.raises(ValueError, match="no step") as caught:
        train()
    error = caught.value
    del caught
    assert all(group() is not None for group in groups)
    forget(error)
    assert all(group() is None for group in groups)
