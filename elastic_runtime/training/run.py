"""``elastic.run``: how a script hands over its training function.

==========================================  ===================================================
``elastic.run(train, state)``               trains now, and gives what ``train`` returns
``@elastic.run`` above ``train``            makes a function: ``train(state)`` trains, as above
``@elastic.run(state)`` above ``train``     trains at once; the name becomes the result
==========================================  ===================================================

They all end in ``run_loop.train_in_place``, once in each process.
"""

from __future__ import annotations

import atexit
import dis
import inspect
import os
import sys
import threading
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.context import context
from elastic_runtime.training.run_loop import train_in_place
from elastic_runtime.training.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from elastic_runtime.worker.recovery.saver_protocol import Saver
    from elastic_runtime.worker.world import World

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Waiting(NamedTuple):
    what: str
    is_mistake: bool


_waiting: list[_Waiting] = []  # what has to follow before anything is trained; see _wait_for


class Trains(Protocol[T_co]):
    """A function decorated with ``@elastic.run``: it trains when it is called with a State."""

    def __call__(
        self,
        state: State,
        checkpointer: Saver | None = None,
        *,
        start_over: bool = False,
        strict: bool = True,
    ) -> T_co:
        """Trains like ``elastic.run(train, state, checkpointer)``; see there for the arguments."""


@overload
def run(
    train: Callable[[World], T],
    state: State,
    checkpointer: Saver | None = None,
    *,
    start_over: bool = False,
    strict: bool = True,
) -> T:
    pass


@overload
def run(train: Callable[[World], T]) -> Trains[T]:
    pass


@overload
def run(
    state: State,
    checkpointer: Saver | None = None,
    *,
    start_over: bool = False,
    strict: bool = True,
) -> Callable[[Callable[[World], T]], T]:
    pass


def run(  # type: ignore[misc]  # the kind of the first argument decides what the second one is
    train: Any = None,
    state: Any = None,
    checkpointer: Any = None,
    *,
    start_over: bool = False,
    strict: bool = True,
) -> Any:
    """Trains, and continues when workers or nodes are lost or join.

    ``elastic.run(train, state)`` calls ``train(world)`` and returns its result. Whenever the world
    changes, ``train`` is interrupted and called again with the new world, in the same process and
    with the state of the last commit.

    As a decorator without arguments, ``@elastic.run`` above ``def train(world)``, it makes a
    function that trains when it is called: ``train(state, checkpointer)``.

    As a decorator with a State, ``@elastic.run(state)``, it trains at once, while Python still
    executes the file, and the name of the function becomes the result. That need not be called; a
    result of None may be, and does nothing.

    Args:
        train: the training function; it is called with the ``World``, on each rank.
        state: the models, optimizers and counters that must survive a fault.
        checkpointer: saves the state, for the case that all workers that have it in memory are
            lost; its entries must contain all parts of the state. None: nothing is saved.
        start_over: what to do if more than 10 steps were committed and all of them are lost,
            because nothing was saved. False: end with an error. True: begin again at step 0.
        strict: whether a checkpoint must have exactly the keys of this program. False: keys that
            it lacks keep their present values, and keys that only it has are ignored; an event
            names both.

    Returns:
        What ``train`` has returned on this rank.

    Raises:
        UsageError: it was called twice, or ``init_process_group`` was called before it; or all
            committed steps are lost; or an argument is of another kind.
        Exception: whatever ``train`` raises, unless a fault of another rank has caused it.
    """
    if isinstance(train, State):  # the State comes first: a decorator is asked for
        train, state, checkpointer = None, train, state if checkpointer is None else checkpointer
    _check_checkpointer(checkpointer)
    if train is None:
        return _trains_at_once(_checked(state), checkpointer, start_over=start_over, strict=strict)
    if not callable(train):
        raise UsageError(
            f"elastic.run needs the function that trains, and this is a "
            f"{type(train).__qualname__}: elastic.run(train, state, checkpointer)"
        )
    if state is None and checkpointer is None and not start_over and strict:
        return _trains_when_called(train, _receiver(sys._getframe(1)))
    state = _checked(state)
    _waiting.clear()
    return train_in_place(train, state, checkpointer, start_over=start_over, strict=strict)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While the block runs, no step is expected: the hang time-out does not count.

    For what takes longer than ``--hang-timeout`` between two commits, such as an evaluation. It
    may be nested, and does nothing without an agent.

    Example::

        with elastic.busy("evaluation"):
            evaluate(model)

    Args:
        what: the name of this work, shown to people in events and status.
    """
    with context().busy(what):
        yield


def _check_checkpointer(given: object) -> None:
    if isinstance(given, (str, os.PathLike)):
        raise UsageError(
            f"elastic.run was given {str(given)!r} as its checkpointer; give a Checkpointer: "
            f'elastic.Checkpointer("{given}", {{"model": model, …}}, every="30s")'
        )
    if given is not None and not hasattr(given, "attach"):
        raise UsageError(
            f"elastic.run was given a {type(given).__qualname__} as its checkpointer; "
            "the order is elastic.run(train, state, checkpointer)"
        )


def _trains_at_once(
    state: State, checkpointer: Saver | None, *, start_over: bool, strict: bool
) -> Callable[[Callable[[World], Any]], Any]:
    _wait_for(
        "elastic.run(state) was given no function; write elastic.run(train, state)",
        is_mistake=True,
    )

    def decorate(train: Callable[[World], Any]) -> Any:
        _waiting.clear()
        value = train_in_place(train, state, checkpointer, start_over=start_over, strict=strict)
        return _Nothing() if value is None else value

    return decorate


def _trains_when_called(train: Callable[[World], T], receiver: str | None) -> Trains[T]:
    _refuse_state_as_parameter(train)
    name = getattr(train, "__name__", "train")
    if receiver is None:
        raise UsageError(f"elastic.run({name}) needs a State: write elastic.run({name}, state)")
    what = f"{name} is decorated with @elastic.run and was never called; write {name}(state)"
    if receiver not in ("", name):
        what = (
            f"elastic.run({name}) made a function that was never called; to train at once it needs "
            f"a State: write elastic.run({name}, state)"
        )
    _wait_for(what, is_mistake=receiver not in ("", name))

    @wraps(train)
    def start(
        state: State | None = None,
        checkpointer: Saver | None = None,
        *,
        start_over: bool = False,
        strict: bool = True,
    ) -> T:
        checked = _checked(state)
        _waiting.clear()
        return train_in_place(train, checked, checkpointer, start_over=start_over, strict=strict)

    return start


def _receiver(frame: FrameType) -> str | None:
    """The name that the caller assigns the result of the present call to.

    Args:
        frame: of the caller, in the middle of the call.

    Returns:
        The name; "": the result is used in another way; None: it is discarded.
    """
    after = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    following = next(after, None)
    if following is None or not following.opname.startswith(("STORE_", "POP_TOP")):
        return ""
    return None if following.opname == "POP_TOP" else str(following.argval)


def _wait_for(what: str, *, is_mistake: bool) -> None:
    """Has the worker report at its end that nothing was trained: its end would look like success.

    Args:
        what: what the script lacks, and what to write.
        is_mistake: the script can have no other purpose than to train.
    """
    if context().has_agent and os.environ.get("RANK", "0") == "0":
        _waiting.append(_Waiting(what, is_mistake))


def refuse_idle() -> None:
    """Checks, at the end of a script, that it did not mean to train and never did.

    A script that decorates a function and does not call it may have another purpose, such as an
    evaluation: that is printed, but is no error.

    Raises:
        UsageError: it can only have meant to train.
    """
    others = (one for one in threading.enumerate() if one is not threading.main_thread())
    if _waiting and _waiting[-1].is_mistake and all(one.daemon for one in others):
        raise UsageError(f"nothing was trained: {_waiting.pop().what}")


@atexit.register
def _say_what_never_came() -> None:
    failed = hasattr(sys, "last_value")
    if _waiting and not failed:
        sys.stderr.write(f"nothing was trained: {_waiting[-1].what}\n")


class _Nothing:
    """The result of ``@elastic.run(state)`` whose function returned None.

    Calling it does nothing, as the training is done already. Otherwise it behaves like None as far
    as possible.
    """

    def __call__(self, *_: object, **__: object) -> None:
        """Returns None, as ``train`` did."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "None"

    def __reduce__(self) -> tuple[Any, ...]:
        return _none, ()  # as a result of ``launch`` it travels, and arrives as None


def _none() -> None:
    """The value that ``_Nothing`` stands for."""


def _checked(state: object) -> State:
    if not isinstance(state, State):
        given = "none was given" if state is None else f"this is a {type(state).__qualname__}"
        raise UsageError(
            f"elastic.run needs the State that must not be lost, and {given}: "
            "elastic.run(train, state), or train(state) where train is decorated with @elastic.run"
        )
    return state


def _refuse_state_as_parameter(train: Callable[..., Any]) -> None:
    """Raises UsageError for a function that takes the State, as other libraries want it."""
    try:
        names = list(inspect.signature(train).parameters)
    except (TypeError, ValueError):  # a callable that does not tell
        return
    if names[:1] == ["state"]:
        name = getattr(train, "__name__", "train")
        raise UsageError(
            f"{name}({', '.join(names)}) takes the State, but elastic.run calls it with the World "
            f"(rank, size, ...): write def {name}(world), and use the state from outside of it"
        )
