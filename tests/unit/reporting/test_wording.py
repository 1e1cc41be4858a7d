"""Numbers, durations and fields in words."""

from __future__ import annotations

import pytest

from elastic_runtime.reporting.wording import Shown, again, count, cut, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (0.314, "0.31 s"),
        (0.996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
    ],
)
def test_a_duration_never_shows_sixty_of_anything(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (["a"], "1 node"), ((), "0 nodes")],
)
def test_things_are_counted(number: object, text: str) -> None:
    assert count(number, "node") == text


def test_steps_that_are_made_again_are_named_only_if_there_are_any() -> None:
    assert again(5, 8) == " (3 steps again)"
    assert again(5, 6) == " (1 step again)"
    assert again(5, 5) == again(5, 2) == again(5, None) == ""


def test_fields_are_one_line_each_and_a_missing_one_is_a_question_mark() -> None:
    shown = Shown({"seconds": 75, "ranks": [1, 2], "reason": " first\nsecond", "round": 3})
    sentence = "round {round}, ranks {ranks}, {seconds}: {reason} ({nobody})"
    assert sentence.format_map(shown) == "round 3, ranks 1, 2, 1 min 15 s: first (?)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b", "a b"),
        ("a\n  b\tc", "a b c"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 8 + " …"),
        ("one two three", "one two …"),
        ("", ""),
    ],
)
def test_a_text_is_cut_where_it_is_too_long(text: str, said: str) -> None:
    assert cut(text, 10) == said
