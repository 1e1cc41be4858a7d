"""Whose fault an error in the training function is, and that nothing old lives on in it."""

from __future__ import annotations

import weakref

import pytest

from elastic_runtime.worker import blame
from elastic_runtime.worker.ranks import Interrupted

CLOSED = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4")


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def _in_its_wake(error: Exception, context: BaseException) -> Exception:
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "worlds"),
    [
        (CLOSED, True),
        (Interrupted(), True),
        (_caused(ValueError("no batch"), CLOSED), True),
        (_in_its_wake(KeyError("grad"), Interrupted()), True),
        (ValueError("no batch"), False),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 7"), False),
        (_caused(RuntimeError("one"), ValueError("two")), False),
    ],
)
def test_an_error_is_the_worlds_fault_if_a_lost_peer_led_to_it(
    error: Exception, worlds: bool
) -> None:
    assert blame.is_worlds_fault(error) is worlds


def test_errors_in_a_circle_are_looked_at_once() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not blame.is_worlds_fault(one)
    blame.forget(one)


def test_what_an_error_has_passed_through_is_let_go() -> None:
    class Group:
        """Stands for a process group that a frame holds."""

    groups: list[weakref.ref[Group]] = []

    def collective() -> None:
        group = Group()
        groups.append(weakref.ref(group))
        raise RuntimeError("Connection closed by peer")

    def train() -> None:
        group = Group()
        groups.append(weakref.ref(group))
        try:
            collective()
        except RuntimeError as error:
            raise ValueError("no step") from error

    with pytest.raises(ValueError, match="no step") as caught:
        train()
    error = caught.value
    del caught
    assert all(group() is not None for group in groups)
    blame.forget(error)
    assert all(group() is None for group in groups)
