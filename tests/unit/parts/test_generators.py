"""Random numbers drawn after a commit are drawn again after a fault."""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from elastic_runtime.parts.generators import RandomGenerators, _Memory

if TYPE_CHECKING:
    from collections.abc import Callable


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


_USES: list[Callable[[], object]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.seed(7),
    lambda: [random.random() for _ in range(312)],  # all words are used up, and made anew
    np.random.random,
    np.random.standard_normal,  # draws two, and keeps the second
    lambda: np.random.seed(7),
    lambda: np.random.random(312),
    lambda: None,
]


def test_what_was_used_since_the_last_snapshot_is_read_again() -> None:
    kept = RandomGenerators()
    chance = random.Random(1)
    for _ in range(300):
        chance.choice(_USES)()
        kept.snapshot()
        first = draw()
        kept.restore()
        assert draw() == first


def test_generators_that_were_not_used_are_not_read_again() -> None:
    kept = RandomGenerators()
    kept.snapshot()
    python, numpy = kept._python.state(), kept._numpy.state()
    assert kept._python.state() is python
    if numpy is not None and not numpy["has_gauss"]:
        assert kept._numpy.state() is numpy
    random.random()
    np.random.random()
    assert kept._python.state() == random.getstate() != python
    assert kept._numpy.state() is not numpy


def test_another_generator_of_numpy_counts_whatever_its_kind() -> None:
    kept, usual = RandomGenerators(), np.random.get_bit_generator()
    kept.snapshot()
    try:
        for other in (np.random.PCG64(1), np.random.MT19937(1), np.random.PCG64(2)):
            np.random.set_bit_generator(other)
            for _ in range(2):
                kept.snapshot()
                first = draw()
                kept.restore()
                assert draw() == first
    finally:
        np.random.set_bit_generator(usual)


def test_memory_with_another_content_than_expected_is_not_relied_on() -> None:
    words = array("I", range(625))
    address, _ = words.buffer_info()
    found = _Memory.with_content(address, list(words))
    assert found is not None
    assert found.content() == words.tobytes()
    assert _Memory.with_content(address, [1, *words[1:]]) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_generator_of_the_gpu_counts() -> None:
    torch.cuda.init()
    kept = RandomGenerators()
    kept.snapshot()
    first = torch.rand(4, device="cuda")
    kept.restore()
    assert torch.equal(torch.rand(4, device="cuda"), first)
