"""Ranks with different states are brought together: real processes, real gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elastic_runtime.worker import sync
from elastic_runtime.worker.standing import Condition, Standing
from elastic_runtime.worker.sync import bring_together
from tests.ranks import run_ranks, values
from tests.unit.worker.test_state import Job


def wire() -> Any:
    """A gloo of its own for all ranks of the test."""
    store = dist.PrefixStore("sync", dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(
        store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=20)
    )


def sync_all(job: Job, saved: int = -1, through: Any = None) -> Any:
    rank, world = dist.get_rank(), dist.get_world_size()
    return bring_together(job.state, through or wire(), rank, world, saved)


def prepare(words: str) -> Job:
    """A job as it is after a fault, from words such as ``new``, ``3clean``, ``2finished``."""
    number = "".join(filter(str.isdigit, words))
    condition = words.removeprefix(number)
    # All begin alike and do the same steps, but a new one has had another start.
    job = Job(seed=9 if condition == "new" else 0)
    if condition == "new":
        return job
    job.start()
    for _ in range(int(number)):
        job.step()
    job.forward()  # the fault hits in the middle of the next step
    if condition != "clean":
        job.optim.step()
    if condition == "dirty":
        job.state.give_up(int(number))
    return job


def meet(*words: str) -> tuple[Any, ...]:
    """Brings ranks together that come from these conditions.

    Returns:
        What was chosen, where the rank stands, and the whole content of its State as text.
    """
    sync.MESSAGE_BYTES = 64  # so that this small model takes several messages of both kinds
    job = prepare(words[dist.get_rank()])
    choice = sync_all(job)
    assert all(p.grad is None for p in job.model.parameters()) or dist.get_rank() != 0
    torch.manual_seed(0)
    return choice, job.state.standing(), job.content(), job.state.digest()


def as_committed(step: int) -> tuple[str, int]:
    """Content and digest of a job that did so many steps without a fault."""
    job = Job().start()
    for _ in range(step):
        job.step()
    torch.manual_seed(0)
    return job.content(), job.state.digest()


def reference(step: int) -> tuple[str, int]:
    # In a process of its own kind, because the generators of this one are not the ranks'.
    return values(run_ranks(1, as_committed, step))[0]


@pytest.mark.parametrize(
    ("words", "step", "sources"),
    [
        (("3clean", "new"), 3, (0,)),
        (("new", "3clean"), 3, (1,)),
        (("2clean", "3clean"), 3, (1,)),
        (("3clean", "3clean", "new", "new"), 3, (0, 1)),
        (("3clean", "new", "2clean", "3dirty"), 3, (0,)),
        (("3finished", "3dirty", "new"), 4, (0,)),
        (("0clean", "new"), 0, (0,)),
    ],
)
def test_everybody_gets_what_the_furthest_has(
    words: tuple[str, ...], step: int, sources: tuple[int, ...]
) -> None:
    results = values(run_ranks(len(words), meet, *words))
    for choice, standing, _, digest in results:
        assert (choice.kind, choice.step, choice.sources) == ("memory", step, sources)
        assert standing == Standing(step, Condition.CLEAN)
        assert digest == results[0][3]
    whole = {content for _, _, content, _ in results}
    assert len({_without_generators(content) for content in whole}) == 1


def test_what_arrives_is_exactly_the_commit() -> None:
    results = values(run_ranks(2, meet, "3clean", "new"))
    content, _ = reference(3)
    assert _without_python(results[0][2]) == _without_python(content)
    assert _without_generators(results[1][2]) == _without_generators(content)
