"""A loader that keeps its processes: what it does between two rounds, and at a SIGTERM."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from elastic_runtime.data import kept_loader, sigterm_shield
from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.data.kept_loader import KeptLoader
from elastic_runtime.data.sigterm_shield import Shielded
from elastic_runtime.worker.round_breaks import begin_break, end_break
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIZE, BATCH = 64, 4
PATIENCE = 30.0


class Counting(Dataset[torch.Tensor]):
    """Counts how often each of its samples is read, in whichever process; can be held up."""

    def __init__(self) -> None:
        self.reads = multiprocessing.Array("i", SIZE)
        self.goes = multiprocessing.Event()
        self.goes.set()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        self.goes.wait()
        with self.reads.get_lock():
            self.reads[index] += 1
        return torch.tensor(index)


def in_order(epoch: int, rng: torch.Generator) -> Sequence[int]:
    return range(SIZE)


class Play:
    """A loader of one rank, and what it is read for."""

    def __init__(self, **options: Any) -> None:
        kept_loader._some_train = False  # that of another test
        self.data = Counting()
        made = DataLoader(self.data, BATCH, order=in_order, num_workers=2, **options)
        self.sampler, kept = made.batch_sampler, made._loader
        assert isinstance(kept, KeptLoader)
        self.loader = kept

    def take(self, steps: int) -> list[list[int]]:
        """Trains so many steps in a new iteration."""
        taken = []
        for batch in self.loader:
            taken.append(batch.tolist())
            self.sampler.commit()
            if len(taken) == steps:
                break
        return taken

    def at_rest(self) -> None:
        """Waits for what goes on in the background."""
        done = self.loader._elastic_done
        assert done is None or done.wait(PATIENCE)

    def count(self, *indices: int) -> list[int]:
        return [self.data.reads[index] for index in indices]

    def wait_for_reads(self, indices: range, times: list[int]) -> None:
        """Waits until each of these was read so often."""
        wait_for(lambda: self.count(*indices) == times, PATIENCE, f"{indices} to be read {times}")


@pytest.fixture
def play() -> Iterator[Play]:
    made = Play()
    yield made
    made.at_rest()
    del made.loader


def batches(first: int, count: int) -> list[list[int]]:
    return [list(range(n * BATCH, (n + 1) * BATCH)) for n in range(first, first + count)]


def test_the_next_round_is_read_for_before_it_begins(play: Play) -> None:
    assert play.take(2) == batches(0, 2)
    begin_break()
    play.at_rest()
    four = range(8, 24)  # the batches that are read ahead
    once_more = [times + 1 for times in play.count(*four)]
    end_break(0, 1)
    play.wait_for_reads(four, once_more)
    assert play.take(1) == batches(2, 1)
    assert play.count(*four) == once_more


@pytest.mark.parametrize(
    ("rank", "world", "moves"), [(0, 2, 0), (0, 1, 1), (0, 1, -1)], ids=["place", "on", "back"]
)
def test_what_was_read_for_another_place_is_dropped(
    play: Play, rank: int, world: int, moves: int
) -> None:
    """The rank that gives its state was ahead, or behind, or the round is another one."""
    play.take(3)
    begin_break()
    end_break(rank, world)
    play.sampler.cursor += moves * BATCH
    assert play.take(2) == batches(3 + moves, 2)


def test_a_second_look_changes_nothing_if_nothing_has_changed(play: Play) -> None:
    play.take(1)
    begin_break()
    end_break(0, 1)
    done = play.loader._elastic_done
    end_break(0, 1)
    assert play.loader._elastic_done is done
    play.sampler.cursor += BATCH
    end_break(0, 1)
    assert play.loader._elastic_done is not done
    play.at_rest()
    assert play.take(1) == batches(2, 1)


def test_neither_of_them_waits_for_data_that_are_slow(play: Play) -> None:
    play.take(1)
    play.data.goes.clear()
    begin_break()
    end_break(0, 1)
    begin_break()
    end_break(0, 1)
    done = play.loader._elastic_done
    assert done is not None
    assert not done.is_set()
    threading.Timer(0.1, play.data.goes.set).start()
    assert play.take(2) == batches(1, 2)


def test_of_several_the_one_for_training_reads_ahead(play: Play) -> None:
    """Also if another one, for evaluation, was used last."""
    other = Play()
    begin_break()
    end_break(0, 1)  # it is not known yet which is for what
    for each in (play, other):
        each.at_rest()
        assert each.loader._elastic_ahead is not None
    play.take(2)
    for _ in other.loader:
        break  # nothing is committed
    begin_break()
    end_break(0, 1)
    play.at_rest()
    other.at_rest()
    assert play.loader._elastic_ahead is not None
    assert other.loader._elastic_ahead is None
    assert play.take(1) == batches(2, 1)
    assert other.take(1) == batches(0, 1)


def test_the_random_numbers_of_samples_belong_to_their_epoch(play: Play) -> None:
    """Reading ahead must not change them for what this process loads by itself meanwhile."""
    from elastic_runtime.data.sample_seeds import Moment, begin, sample_rng

    play.take(1)
    begin(Moment(7, 3))
    begin_break()
    end_break(0, 1)
    play.at_rest()
    ours = sample_rng(5).initial_seed()
    assert ours == sample_rng(5, seed=7, epoch=3).initial_seed()
    play.take(1)  # and now it is the loader's that counts, as without reading ahead
    assert sample_rng(5).initial_seed() == sample_rng(5, seed=0, epoch=0).initial_seed()


def test_what_was_iterated_over_before_the_first_round_stays(play: Play) -> None:
    iterator = iter(play.loader)
    begin_break(first=True)
    assert [next(iterator).tolist() for _ in range(6)] == batches(0, 6)


def test_no_epoch_is_ordered_that_cannot_be() -> None:
    """A job that has trained all its epochs is resumed, and returns at once."""

    def order(epoch: int, rng: torch.Generator) -> Sequence[int]:
        return [range(SIZE)][epoch]

    given = DataLoader(Counting(), BATCH, order=order, num_workers=1)
    sampler, made = given.batch_sampler, given._loader
    begin_break()
    sampler.epoch = 1
    end_break(0, 1)
    with pytest.raises(IndexError):
        iter(made)  # as it would be without reading ahead
    sampler.epoch = 0
    assert next(iter(made)).tolist() == list(range(BATCH))


def test_without_room_for_a_thread_nothing_is_read_ahead(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.take(2)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        begin_break()
        end_break(0, 1)
    assert play.take(2) == batches(2, 2)


def test_a_signal_while_it_is_waited_for_does_no_harm(play: Play) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    play.take(2)
    play.data.goes.clear()
    begin_break()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Alarm):
            play.take(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    play.data.goes.set()
    assert play.take(2) == batches(2, 2)


def test_a_process_of_the_loader_that_has_died_is_an_error_of_the_iteration(play: Play) -> None:
    play.take(1)
    iterator: Any = play.loader._iterator
    ended = iterator._workers[0]
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch raises there, wherever it is
    try:
        os.kill(ended.pid, signal.SIGKILL)
        ended.join(PATIENCE)
        begin_break()
        end_break(0, 1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="DataLoader worker"):
                play.take(1)
    finally:
        signal.signal(signal.SIGCHLD, before)


# A loader's process outlives the SIGTERM of a whole job, and ends with a later one


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[..., Any]]:
    """The handlers that are set; this process keeps its own."""
    found: dict[int, Callable[..., Any]] = {}
    fake = SimpleNamespace(SIGTERM=signal.SIGTERM, signal=found.__setitem__)
    monkeypatch.setattr(sigterm_shield, "signal", fake)
    return found


class _Ended(Exception):
    pass


def test_the_first_signal_and_its_echo_are_outlived_and_a_later_one_is_not(
    handlers: dict[int, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise _Ended

    monkeypatch.setattr(sigterm_shield, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sigterm_shield, "os", SimpleNamespace(_exit=end))
    Shielded(None)(0)
    handle = handlers[signal.SIGTERM]
    handle(signal.SIGTERM, None)
    handle(signal.SIGTERM, None)
    now[0] += 60
    with pytest.raises(_Ended):
        handle(signal.SIGTERM, None)
    assert codes == [0], "the worker must not take it for a failure of its loader"


def test_the_users_function_comes_last_and_may_do_otherwise(
    handlers: dict[int, Callable[..., Any]],
) -> None:
    seen: list[tuple[int, bool]] = []
    Shielded(lambda worker: seen.append((worker, signal.SIGTERM in handlers)))(3)
    assert seen == [(3, True)]
