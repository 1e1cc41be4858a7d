"""Events, and those that come from somewhere else by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from string import Formatter

import pytest

from elastic_runtime.events.checkpoint_events import CheckpointResumed
from elastic_runtime.events.event import (
    _KINDS,
    SUBJECTS,
    ForeignEvent,
    NotedEvent,
    known_events,
    read,
)
from elastic_runtime.events.store_events import StoreLost

ROOT = Path(__file__).parents[3]


def test_every_file_of_events_is_a_subject() -> None:
    folder = ROOT / "elastic_runtime" / "events"
    assert {path.stem for path in folder.glob("*_events.py")} == set(SUBJECTS)


def test_every_event_says_when_it_happens_and_has_fields_that_can_be_checked() -> None:
    for event in known_events().values():
        assert event.__doc__ and "(" not in event.__doc__.split()[0], event
        types = {one.partition("[")[0] for f in fields(event) for one in str(f.type).split(" | ")}
        assert types <= _KINDS.keys(), event


def test_a_sentence_is_made_of_fields_of_its_event() -> None:
    for event in known_events().values():
        named = {name for _, name, *_ in Formatter().parse(event.sentence) if name}
        assert named <= {one.name for one in fields(event)}, event


def test_an_event_is_what_was_sent() -> None:
    event = CheckpointResumed("runs/x", 3, 0.5, rank=0, round=2)
    assert read(event.name, event.fields()) == event
    assert "reached" not in event.fields(), "nobody knows"


def test_what_a_newer_version_says_besides_is_passed_on() -> None:
    event = read("store.lost", {"why": "x", "since": 7})
    assert event == StoreLost("x", extra={"since": 7})
    assert event.fields() == {"why": "x", "since": 7}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("something.new", {"a": 1}),
        ("store.lost", {}),
        ("store.lost", {"why": 7}),
        ("checkpoint.resumed", {"path": "x", "step": "3", "seconds": 0.1}),
        ("", {}),
    ],
)
def test_what_is_not_understood_passes_as_it_came(name: str, given: dict[str, object]) -> None:
    event = read(name, given)
    assert isinstance(event, ForeignEvent)
    assert (event.name, event.fields(), event.kept_message()) == (name, given, "")


def test_a_worker_does_not_speak_for_its_agent() -> None:
    assert read("store.lost", {"why": "x"}, NotedEvent) == ForeignEvent(
        "store.lost", extra={"why": "x"}
    )
