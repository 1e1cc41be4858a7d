"""Whose fault an error in ``train`` is: the user's, or that of a world that has changed."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING

import torch.distributed as dist

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private
from elastic_runtime.worker import worker_main
from elastic_runtime.worker.groups.round_ranks import Interrupted
from elastic_runtime.worker.recovery import thread_inspection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.worker.groups.round_ranks import Ranks


# Of an error that ends a round, in characters.
_LONGEST_TEXT = 160


class WorldChanged(BaseException):
    """Ends ``train``: the world is about to be another one. Not an error, and not to be caught."""


def check_groups(ranks: Ranks | None) -> None:
    """Returns if what the collectives have given so far can be relied on.

    Args:
        ranks: those of the round; None where no agent interrupts.

    Raises:
        WorldChanged: the round was interrupted: collectives of the GPU may have been cut off.
        DistBackendError: torch itself has ended a collective.
    """
    if ranks is not None and ranks.interrupted.is_set():
        raise WorldChanged("the round is broken")
    if failure := torch_private.nccl_failure():
        raise dist.DistBackendError(f"NCCL error: a collective has failed ({failure})")


def forget(error: BaseException) -> None:
    """Clears the frames that an error has passed through: they hold the old groups."""
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__


def is_worlds_fault(error: BaseException, ranks: Ranks) -> bool:
    """Whether an error says no more than that the round is over, or that peers are gone.

    In a round that its agent has called broken everything may fail. Before that, only what comes
    from a collective, and all that torch meets while the ranks connect, in whatever words; who is
    alone has none.

    Args:
        error: what has ended ``train``, or the way into it.
        ranks: those of the round.
    """
    if ranks.interrupted.is_set():
        return not isinstance(error, UsageError)
    return ranks.place.size > 1 and _is_of_peers(error, ranks)


def _is_of_peers(error: BaseException, ranks: Ranks) -> bool:
    return (ranks.building and isinstance(error, RuntimeError)) or worker_main.is_echo(error)


@contextmanager
def explained() -> Iterator[None]:
    """Says what to do about an error of torch's that only makes sense without ``elastic.run``.

    Raises:
        UsageError: for such an error of the body.
    """
    try:
        yield
    except ValueError as error:
        if "initialize the default process group twice" not in str(error):
            raise
        raise UsageError(
            "init_process_group() was called inside of elastic.run, which has made the process "
            "group already, and makes it again after each change: remove the call"
        ) from error


def _gist(text: str) -> str:
    """The sentence that says most: the first one, or with NCCL the last, which it calls an error.

    Args:
        text: of an error. That of NCCL begins with its place in torch and the kind of error.
    """
    _, _, last = text.partition("\nLast error:\n")
    return (last.strip() or text.strip()).partition("\n")[0].partition(". ")[0]


def in_one_line(error: BaseException, ranks: Ranks) -> str:
    """What such an error says and where it was met, for people.

    Args:
        error: the world's fault.
        ranks: those of the round.
    """
    if isinstance(error, Interrupted):
        return "the round broke while the ranks connected"
    if ranks.place.size == 1 or not _is_of_peers(error, ranks):
        what = "the script failed in a broken round"
    elif ranks.building:
        what = "the ranks could not connect"
    else:
        what = "the connection to a peer is lost"
    text = shorten(_gist(str(error)), _LONGEST_TEXT, placeholder=" ...")
    where = thread_inspection.met(error.__traceback__)
    return f"{what} ({type(error).__name__}: {text}{f', at {where}' if where else ''})"
