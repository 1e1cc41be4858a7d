"""Whose fault an error in ``train`` is: the world's, which has changed, or the user's."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import torch.distributed as dist

from elastic_runtime import torch_private
from elastic_runtime.worker import boot
from elastic_runtime.worker.ranks import Interrupted

if TYPE_CHECKING:
    from elastic_runtime.worker.ranks import Ranks


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


def is_worlds_fault(error: BaseException) -> bool:
    """Whether an error, or what led to it, only says that peers are gone."""
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        if isinstance(chain, Interrupted) or boot.is_echo(_in_words(chain)):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def in_one_line(error: BaseException) -> str:
    """What such an error says, for people."""
    if isinstance(error, Interrupted):
        return "the round broke while the ranks connected"
    return "the connection to a peer is lost"
