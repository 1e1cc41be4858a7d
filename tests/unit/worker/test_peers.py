"""What ranks tell each other, in processes of their own."""

from __future__ import annotations

import pytest

from elastic_runtime.errors import DamagedCheckpoint
from elastic_runtime.worker.peers import Peers
from tests.ranks import run_ranks

# Around what fits into one exchange: a text has two quotes.
LENGTHS = (0, 1, 1013, 1014, 1015, 1016, 5000)


def _gathered(lengths: tuple[int, ...]) -> list[list[str]]:
    peers = Peers()
    return [peers.gather(chr(97 + peers.rank) * (one * (peers.rank + 1))) for one in lengths]


def test_answers_of_any_length_reach_all_ranks_whole() -> None:
    outcomes = run_ranks(3, _gathered, LENGTHS)
    expected = [[chr(97 + rank) * (one * (rank + 1)) for rank in range(3)] for one in LENGTHS]
    assert [one.value for one in outcomes] == [expected] * 3, outcomes


def _failing(text: str) -> str:
    peers = Peers()

    def action() -> None:
        if peers.rank == 1:
            raise DamagedCheckpoint(text)

    try:
        peers.on_each(action)
    except DamagedCheckpoint as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("text", ["it is damaged: ß", "long " * 1000])
def test_a_failure_of_one_rank_is_raised_on_all(text: str) -> None:
    assert [one.value for one in run_ranks(2, _failing, text)] == [text] * 2


def test_one_rank_asks_nobody() -> None:
    assert Peers().gather([1]) == [[1]]


def _from_and_to_the_first() -> list[object]:
    peers = Peers()
    mine = chr(97 + peers.rank)
    found: list[object] = []
    for length in LENGTHS:
        found.append(peers.on_first(lambda size=length: mine * size))
        found.append(peers.share_out(lambda size=length: ["a" * size, "b", "c" * 2 * size]))
        found.append(peers.to_first(mine * length if peers.rank != 1 else None))
    return found


def test_rank_0_gives_and_takes_answers_of_any_length() -> None:
    outcomes = [one.value for one in run_ranks(3, _from_and_to_the_first)]
    for at, size in enumerate(LENGTHS):
        told, shares, taken = zip(*(one[3 * at : 3 * at + 3] for one in outcomes), strict=True)
        assert told == ("a" * size,) * 3
        assert shares == ("a" * size, "b", "c" * 2 * size)
        assert taken == (["a" * size, None, "c" * size], None, None)


def _failing_first(text: str) -> list[str]:
    peers = Peers()

    def action() -> list[str]:
        raise DamagedCheckpoint(text)

    found = []
    for ask in (peers.on_first, peers.share_out):
        try:
            ask(action)
        except DamagedCheckpoint as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("text", ["it is damaged: ß", "long " * 1000])
def test_a_failure_of_rank_0_is_raised_on_all(text: str) -> None:
    assert [one.value for one in run_ranks(2, _failing_first, text)] == [[text] * 2] * 2
