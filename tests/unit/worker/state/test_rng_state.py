"""Random numbers drawn after a commit are drawn again after a fault."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from elastic_runtime.worker.state.rng_state import RandomGenerators


def draw() -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), torch.rand(1).item(), torch.randn(1).item()]
    return [*numbers, np.random.random(), np.random.normal()]


def test_the_same_numbers_come_again_each_time() -> None:
    kept = RandomGenerators()
    draw()
    kept.snapshot()
    first = draw()
    for _ in range(2):
        kept.restore()
        assert draw() == first
    assert draw() != first


def test_without_a_snapshot_nothing_changes() -> None:
    random.seed(1)
    kept = RandomGenerators()
    state = random.getstate()
    kept.restore()
    assert random.getstate() == state


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_generator_of_the_gpu_counts() -> None:
    torch.cuda.init()
    kept = RandomGenerators()
    kept.snapshot()
    first = torch.rand(4, device="cuda")
    kept.restore()
    assert torch.equal(torch.rand(4, device="cuda"), first)
