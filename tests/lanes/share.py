"""What a change has to pass beside the quick lane: what it touches, and a share of the rest (pure).

The rest is dealt into shares of about the same size. A change runs the one whose turn it is by the
time of its commit, so that about six landings one after the other run everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

# Processor seconds that a change has for all of this: on two cores some ten minutes.
BUDGET_S = 1000.0
SLOT_S = 3 * 3600  # the next commit of a working day is in another slot


@dataclass(frozen=True, slots=True)
class Share:
    """What is run beside the quick lane, by pieces, and what is not."""

    touched: tuple[str, ...]
    turn: tuple[str, ...]
    left_out: tuple[str, ...]
    number: int  # of the share whose turn it is
    shares: int  # how many there are

    @property
    def chosen(self) -> tuple[str, ...]:
        """All that is run."""
        return self.touched + self.turn


def choose(
    seconds: Mapping[str, float],
    touched: Sequence[Collection[str]],
    commit_time: int,
    budget: float = BUDGET_S,
) -> Share:
    """Chooses the share whose turn it is, what the change touches, and then what else fits.

    Args:
        seconds: the processor time of each piece.
        touched: the pieces that the change touches, those that it touches most closely first. They
            get half of the budget at most.
        commit_time: when the commit was made, in seconds since 1970.
        budget: the processor time there is. The share whose turn it is runs whole in any case.
    """
    half = budget / 2
    shares = deal(seconds, half)
    number = commit_time // SLOT_S % len(shares)
    turn = shares[number]
    budget -= sum(seconds[piece] for piece in turn)
    # From the turn on, round the circle: what many commits in a row touch, and does not fit as a
    # whole, is another part of it each time.
    circle = [piece for share in shares[number + 1 :] + shares[:number] for piece in share]
    close = {piece: at for at, group in reversed([*enumerate(touched)]) for piece in group}
    near = sorted((piece for piece in circle if piece in close), key=lambda piece: close[piece])
    first = fill(near, seconds, min(half, budget))
    budget -= sum(seconds[piece] for piece in first)
    turn += fill((piece for piece in circle if piece not in first), seconds, budget)
    left_out = tuple(sorted(seconds.keys() - {*first, *turn}))
    return Share(tuple(first), tuple(turn), left_out, number, len(shares))


def deal(seconds: Mapping[str, float], most: float) -> list[list[str]]:
    """Deals pieces into shares of at most so many seconds, or of one piece that takes more.

    The number of shares is prime: landings at equal distances in time then meet all of them.
    """
    count = 1
    while True:
        count = _next_prime(count)
        shares: list[list[str]] = [[] for _ in range(count)]
        sums = [0.0] * count
        for piece in sorted(seconds, key=lambda piece: (-seconds[piece], piece)):
            least = sums.index(min(sums))
            shares[least].append(piece)
            sums[least] += seconds[piece]
        if all(sums[at] <= most or len(share) == 1 for at, share in enumerate(shares)):
            return shares


def fill(pieces: Iterable[str], seconds: Mapping[str, float], budget: float) -> list[str]:
    """Takes the pieces that fit, in their order."""
    taken = []
    for piece in pieces:
        if seconds[piece] <= budget:
            taken.append(piece)
            budget -= seconds[piece]
    return taken


def _next_prime(number: int) -> int:
    number += 1
    while any(number % divisor == 0 for divisor in range(2, number)):
        number += 1
    return number
