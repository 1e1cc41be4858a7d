"""Real loaders with processes of their own: what they read ahead never counts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import elastic_runtime as elastic
from elastic_runtime.data.sigterm_shield import Shielded
from tests.unit.data.play import Job, Life, train, world_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class Noise(Dataset[tuple[int, int, int]]):
    """The number of a sample, the seed of its random numbers, and the process that loaded it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return index, elastic.sample_rng(index).initial_seed(), os.getpid()


@settings(max_examples=4, deadline=None)
@given(
    size=st.integers(5, 30),
    batch=st.integers(1, 8),
    lives=st.lists(st.builds(Life, st.integers(1, 3), st.integers(2, 9)), min_size=2, max_size=3),
    prefetch=st.integers(1, 6),
    at_once=st.none() | st.integers(1, 3),
)
def test_processes_that_read_ahead_do_not_change_the_sequence(
    size: int, batch: int, lives: list[Life], prefetch: int, at_once: int | None
) -> None:
    job = Job(size, batch)
    # The lives repeat until an epoch is over; each starts processes, so there must not be many.
    long = [Life(life.world, life.steps * -(-size // batch)) for life in lives]
    options = {"num_workers": 2, "prefetch_factor": prefetch, "at_once": at_once}
    assert job.play(long, 2, **options) == job.alone(2)


# Spawned processes take seconds to start, so there are fewer of them.
@pytest.mark.parametrize(
    ("method", "lives"),
    [("fork", [(2, 3), (3, 4), (1, 2), (2, 99)]), ("spawn", [(1, 3), (1, 4), (1, 99)])],
)
def test_processes_that_outlive_epochs_and_worlds_know_both(
    method: str, lives: list[tuple[int, int]]
) -> None:
    """In place: the loaders stay, and the world changes in the middle of an epoch."""
    most = max(world for world, _ in lives)
    loaders = [
        _Noting(
            Noise(20), 4, seed=3, num_workers=2, prefetch_factor=4, multiprocessing_context=method
        )
        for _ in range(most)
    ]
    seen: list[list[int]] = []
    for world, steps in lives:
        ranks = loaders[:world]
        for number, rank in enumerate(ranks):
            rank.enter(world_of(number, world))
            rank.load_state_dict(loaders[0].state_dict())
        seen += train(ranks, Life(world, steps), 2)
    assert seen == Job(20, 4, 3).alone(2)
    processes = {process for rank in loaders for *_, process in rank.taken}
    assert len(processes - {os.getpid()}) == 2 * most, "the processes of a loader stay"
    seeds: dict[tuple[int, int], set[int]] = {}
    for epoch, index, seed, _ in (note for rank in loaders for note in rank.taken):
        seeds.setdefault((epoch, index), set()).add(seed)
    assert seeds == {
        (epoch, index): {elastic.sample_rng(index, seed=3, epoch=epoch).initial_seed()}
        for epoch in range(2)
        for index in range(20)
    }


class _Noting(elastic.DataLoader):
    """A loader of ``Noise`` that gives the numbers of the samples, and notes the rest."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.taken: list[tuple[int, int, int, int]] = []

    def _rest_of_epoch(self) -> Iterator[Any]:
        for step in super()._rest_of_epoch():
            step._batches = self._noted(step, step._batches)
            yield step

    def _noted(self, step: Any, batches: Iterator[Any]) -> Iterator[torch.Tensor]:
        for batch in batches:
            self.taken += [(step.epoch, *row) for row in torch.stack(batch).T.tolist()]
            yield batch[0]


def test_a_sigterm_to_a_whole_tree_of_processes_leaves_the_loader_what_it_is() -> None:
    told: list[int] = []
    before = set(multiprocessing.active_children())
    made = elastic.DataLoader(Noise(64), 4, num_workers=2, prefetch_factor=1, worker_init_fn=_note)
    seen = []
    for index, _, pid in made:
        assert set(pid.tolist()) != {os.getpid()}
        if not told:
            own = set(multiprocessing.active_children()) - before
            told = [child.pid for child in own if child.pid]
            assert len(told) == 2
            for child in told * 2:
                os.kill(child, signal.SIGTERM)
        seen += index.tolist()
    assert sorted(seen) == list(range(64))
    assert os.environ.get("NOTED") is None  # it ran in those processes, not here


def _note(worker: int) -> None:
    os.environ["NOTED"] = str(worker)


def test_a_loader_process_that_is_told_again_later_ends() -> None:
    shield = Shielded(None)
    before = signal.getsignal(signal.SIGTERM)
    child = os.fork()
    if not child:
        shield(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert shield._request is not None
        shield._request = replace(shield._request, at=shield._request.at - 10)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_program_with_a_loader_ends() -> None:
    lines = (
        "import elastic_runtime as elastic",
        "made = elastic.DataLoader(range(64), 4, num_workers=1)",
        "print(len(next(iter(next(made.steps())))))",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert (done.stdout, done.stderr) == ("4\n", "")
