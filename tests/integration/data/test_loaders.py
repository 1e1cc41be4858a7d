"""Real loaders with processes of their own: what they read ahead never counts."""

from __future__ import annotations

import json
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
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import elastic_runtime as elastic
from elastic_runtime.data.sigterm_shield import Shielded
from tests.unit.data.play import Job, Life, train, world_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime import ElasticBatchSampler


# What torchdata 0.11 calls in torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


class Noise(Dataset[tuple[int, int, int]]):
    """The number of a sample, the seed of its random numbers, and the process that loaded it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return index, elastic.sample_rng(index).initial_seed(), os.getpid()


class Numbers(IterableDataset[int]):
    """0, 1, 2, …, and beyond 100 for each epoch."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return (100 * self._epoch + i for i in range(self._size))


@settings(max_examples=4, deadline=None)
@given(
    size=st.integers(5, 30),
    batch=st.integers(1, 8),
    lives=st.lists(
        st.builds(Life, st.integers(1, 3), st.integers(2, 9), st.integers(0, 2)),
        min_size=2,
        max_size=3,
    ),
    prefetch=st.integers(1, 6),
    stateful=st.booleans(),
)
def test_processes_that_read_ahead_do_not_change_the_sequence(
    size: int, batch: int, lives: list[Life], prefetch: int, stateful: bool
) -> None:
    job = Job(size, batch)
    kind = StatefulDataLoader if stateful else DataLoader

    def load(sampler: ElasticBatchSampler) -> Any:
        data = torch.arange(size)
        return kind(
            data,
            batch_sampler=sampler,
            num_workers=2,
            prefetch_factor=prefetch,
            persistent_workers=True,
        )

    # The lives repeat until an epoch is over; each starts processes, so there must not be many.
    long = [Life(life.world, life.steps * -(-size // batch), life.ahead) for life in lives]
    assert job.play(long, 2, load) == job.alone(2)


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
    samplers = [elastic.ElasticBatchSampler(20, 4, seed=3) for _ in range(most)]
    loaders = [
        elastic.loader(
            Noise(20), sampler, num_workers=2, prefetch_factor=4, multiprocessing_context=method
        )
        for sampler in samplers
    ]
    seen: list[list[int]] = []
    seeds: dict[tuple[int, int], set[int]] = {}
    processes = set()
    for world, steps in lives:
        ranks = samplers[:world]
        for number, rank in enumerate(ranks):
            rank.enter(world_of(number, world))
            rank.load_state_dict(samplers[0].state_dict())
        noted: list[Any] = [_Noting(loader) for loader in loaders[:world]]
        seen += train(ranks, noted, Life(world, steps), 2)
        for note in noted:
            for epoch, index, seed, process in note.taken:
                seeds.setdefault((epoch, index), set()).add(seed)
                processes.add(process)
    assert seen == Job(20, 4, 3).alone(2)
    assert len(processes - {os.getpid()}) == 2 * most, "the processes of a loader stay"
    assert seeds == {
        (epoch, index): {elastic.sample_rng(index, seed=3, epoch=epoch).initial_seed()}
        for epoch in range(2)
        for index in range(20)
    }


class _Noting:
    """A loader of ``Noise`` that gives the numbers of the samples, and notes the rest."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.taken: list[tuple[int, int, int, int]] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        epoch = self._loader.batch_sampler.epoch
        for batch in self._loader:
            self.taken += [(epoch, *row) for row in torch.stack(batch).T.tolist()]
            yield batch[0]


@pytest.mark.parametrize(
    ("method", "lives"), [("fork", [(1, 2), (2, 5), (1, 99)]), ("spawn", [(1, 3), (1, 99)])]
)
def test_a_stream_goes_on_in_another_world(method: str, lives: list[tuple[int, int]]) -> None:
    options = {"num_workers": 2, "multiprocessing_context": method}
    most = max(world for world, _ in lives)
    loaders = [
        elastic.loader(Numbers(17), batch=4, at_least_once=True, **options) for _ in range(most)
    ]
    steps: list[list[int]] = []
    for world, count in lives:
        for number, rank in enumerate(loaders[:world]):
            rank.enter(world_of(number, world))
            rank.load_state_dict(json.loads(json.dumps(loaders[0].state_dict())))
        steps += train(loaders[:world], loaders[:world], Life(world, count), 2)
    assert [sorted(step) for step in steps] == [
        [100 * epoch + i for i in range(start, min(start + 4, 17))]
        for epoch in range(2)
        for start in range(0, 17, 4)
    ]


# torchdata's loader has a state of its own, which holds what the sampler and its iterator say.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 4, 5, 7])
def test_the_state_of_a_stateful_loader_agrees_with_that_of_the_sampler(
    workers: int, steps: int
) -> None:
    def make() -> tuple[ElasticBatchSampler, Any]:
        sampler = elastic.ElasticBatchSampler(18, 4, rank=0, world=1)
        data = torch.arange(18)
        return sampler, StatefulDataLoader(data, batch_sampler=sampler, num_workers=workers)

    sampler, loader = make()
    begun = train([sampler], [loader], Life(1, steps), 2)
    saved = sampler.state_dict(), loader.state_dict()
    assert sampler.state_dict() == saved[0]

    sampler, loader = make()
    sampler.load_state_dict(saved[0])
    loader.load_state_dict(saved[1])
    rest = train([sampler], [loader], Life(1, 1 << 30), 2)
    assert begun + rest == Job(18, 4).alone(2)


def test_a_sigterm_to_a_whole_tree_of_processes_leaves_the_loader_what_it_is() -> None:
    told: list[int] = []
    data = Noise(64)
    sampler = elastic.ElasticBatchSampler(len(data), batch=4, rank=0, world=1)
    made = elastic.loader(data, sampler, num_workers=2, prefetch_factor=1, worker_init_fn=_note)
    seen = []
    for index, _, pid in made:
        assert set(pid.tolist()) != {os.getpid()}
        if not told:
            told = [child.pid for child in multiprocessing.active_children() if child.pid]
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
        "sampler = elastic.ElasticBatchSampler(64, batch=4, rank=0, world=1)",
        "made = elastic.loader(list(range(64)), sampler, num_workers=1)",
        "batches = iter(made)",
        "print(len(next(batches)))",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert (done.stdout, done.stderr) == ("4\n", "")
