"""An object that has come past the schema somehow: no decision ever raises."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.controller.jobs import FULL
from tests.unit.controller.simulated import Cluster, begun

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD = [None, True, 0, -1, 1.5, 10**12, "", "x", "\x00", [], [1], [None], {}, {"a": 1}, [{}], [[]]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything within an object."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*path, name))
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from places(each, (*path, place))


RUNS = begun(FULL)
RUNS.run().settle()
PLACES = sorted(places(FULL["spec"]), key=str)


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_no_object_makes_a_decision_raise(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        made = copy.deepcopy(FULL)
        target = made["spec"]
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = copy.deepcopy(odd)
        assert Cluster(made).decide().status["conditions"], odd
        running = Cluster(FULL)
        running.job["status"] = copy.deepcopy(RUNS.status)
        running.pods = dict(RUNS.pods)
        running.job["spec"] = made["spec"]
        assert running.decide().status["conditions"], odd
        running.end(0, 1)
        assert running.decide().status["conditions"], odd


def test_every_part_of_the_object_is_tried() -> None:
    assert len(PLACES) > 60
