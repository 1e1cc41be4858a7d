from __future__ import annotations

import pytest

from elastic_runtime.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("30 sec", 30.0),
        (" 1.5H ", 5400.0),
        ("10m", 600.0),
        ("10min", 600.0),
        (".5h", 1800.0),
        ("7d", 604800.0),
        ("0s", 0.0),
    ],
)
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_number_alone_has_the_unit_of_who_asks() -> None:
    assert parse_duration("2", unit="s") == 2.0
    assert parse_duration("2", unit="m") == 120.0
    with pytest.raises(ValueError, match="2"):
        parse_duration("2")


@pytest.mark.parametrize("text", ["", "s", "-1s", "1w", "1 h 30", "1e3s", "nan", "9" * 400 + "s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (30, "30 s"), (90, "1.5 min"), (7200, "2 h"), (604800, "7 d"), (0, "0 s")],
)
def test_the_text_of_a_duration_is_exact(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
