"""What the rounds of a job in place leave in the store of an agent.

Each round's ranks tell each other there where they listen, once for each of their groups: some
``n * (150 + 8 n)`` bytes a group. The store runs as long as its agent, so what rounds that are
over have left is deleted when a new one is entered.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

# The present round and the one before. A rank that is late in that one finds the addresses of its
# peers, and that they are gone; without them it would wait for them to come, for as long as its
# agent takes to tell it that the round is broken. All have left the round before that one.
_KEPT = 2
# An incarnation ends with the number of its first round: see ``rendezvous.core.incarnation``.
_OF_A_ROUND = re.compile(r"(.+?\.\d+)/(\d+)/")


def key_of(incarnation: str, number: int) -> str:
    """The prefix of all that a round keeps in a store.

    Args:
        incarnation: of the job.
        number: of the round.
    """
    return f"{incarnation}/{number}"


def forget_rounds(store: TCPStore, incarnation: str, number: int) -> None:
    """Deletes what rounds have left that are over for long.

    Args:
        store: of this agent.
        incarnation: of the job; what is of another one is over as well.
        number: the round that is being entered.
    """
    with suppress(RuntimeError):  # the store has ended with its agent's work
        for key in store.list_keys():
            found = _OF_A_ROUND.match(key)  # or it is the store's own
            if found and (found[1] != incarnation or int(found[2]) <= number - _KEPT):
                store.delete_key(key)
