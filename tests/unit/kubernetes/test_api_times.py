"""Times as the Kubernetes API writes them."""

from __future__ import annotations

import pytest

from elastic_runtime.kubernetes.api_times import format_time, parse_time

NOW = 1_750_000_000.0


def test_a_time_is_read_as_it_was_written() -> None:
    assert parse_time(format_time(NOW + 0.9)) == NOW
    assert parse_time("2025-06-15T17:06:40+02:00") == NOW


@pytest.mark.parametrize("text", ["", None, "yesterday", 3, "0001-01-01T00:00:00+23:59"])
def test_what_is_not_a_time_is_0(text: object) -> None:
    assert parse_time(text) == 0.0
