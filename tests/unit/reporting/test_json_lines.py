"""Lines of text as events, one line of JSON each."""

from __future__ import annotations

import json
from typing import Any

from elastic_runtime.reporting.json_lines import WORKER_LINE, LineEvents


def events(text: bytes) -> list[dict[str, Any]]:
    made = LineEvents(WORKER_LINE, {"rank": 3}).with_(round=7)(text)
    return [json.loads(line) for line in made.splitlines()]


def test_each_line_is_an_event_and_says_whose_it_is() -> None:
    first, second = events(b"loss 0.1\n\n")
    assert (first["event"], first["rank"], first["round"]) == (WORKER_LINE, 3, 7)
    assert (first["line"], second["line"]) == ("loss 0.1", "")
    assert "partial" not in first


def test_a_line_that_is_not_finished_says_so() -> None:
    whole, rest = events(b"one\ntw")
    assert (whole["line"], rest["line"], rest["partial"]) == ("one", "tw", True)


def test_no_byte_of_a_line_is_lost_or_breaks_the_event() -> None:
    (event,) = events(b'a "quote", \xff and \xc3\xa9\r\n')
    assert event["line"] == 'a "quote", \\xff and é\r'
