"""Values as people type them: durations, amounts of memory, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.cli.flags import value_types
from elastic_runtime.cli.flags.value_types import seconds
from elastic_runtime.config import MemoryLimit


@given(st.floats(0, 1e6), st.sampled_from(["", "s", " s", "ms", "m", "h"]))
def test_durations(number: float, unit: str) -> None:
    factor = {"": 1, "s": 1, "ms": 0.001, "m": 60, "h": 3600}[unit.strip()]
    assert seconds(f"{number:.3f}{unit}") == pytest.approx(round(number, 3) * factor)


@pytest.mark.parametrize("text", ["", "abc", "-1", "1w", "nan", "inf", "1e3", "2 3", "9" * 400])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("8GiB", MemoryLimit(bytes=8 << 30)),
        ("1.5 g", MemoryLimit(bytes=3 << 29)),
        ("500MB", MemoryLimit(bytes=500_000_000)),
        ("500 Mi", MemoryLimit(bytes=500 << 20)),
        ("4194304", MemoryLimit(bytes=4 << 20)),
        ("0", MemoryLimit()),
        ("25%", MemoryLimit(share=0.25)),
        ("0%", MemoryLimit()),
    ],
)
def test_amounts_of_memory(text: str, limit: MemoryLimit) -> None:
    assert value_types.memory(text) == limit


@pytest.mark.parametrize(
    "text", ["", "much", "-1", "25", "4096", "101%", "1e9", "8 GiBit", "8i", "%", "1" * 30]
)
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError):
        value_types.memory(text)


def test_text_with_a_zero_byte_is_refused_and_a_small_float_is_read() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        value_types.TEXT.from_toml("a\0b")
    assert value_types.SECONDS.from_toml(1e-5) == 1e-5
