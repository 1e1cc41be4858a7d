"""Looking at a job again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.kube.job_client import NotAllowed
from elastic_runtime.cli.kube.job_watch import poll
from elastic_runtime.errors import ClusterUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _looks(*found: int | Exception) -> Callable[[], int]:
    answers: Iterator[int | Exception] = iter(found)

    def look() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_it_ends_with_the_look_that_is_the_last() -> None:
    assert list(poll(_looks(2, 3, 4), 1, 0.0, lambda now: now == 3)) == [1, 2, 3]


def test_a_first_look_that_is_the_last_is_the_only_one() -> None:
    assert list(poll(_looks(), 1, 3600.0, lambda now: True)) == [1]


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    look = _looks(ClusterUnreachable("down"), ClusterUnreachable("down"), 2)
    assert list(poll(look, 1, 0.0, lambda now: now == 2)) == [1, None, None, 2]


def test_a_refusal_is_not_waited_for() -> None:
    looks = poll(_looks(NotAllowed("no right"), 2), 1, 0.0, lambda now: now == 2)
    assert next(looks) == 1
    with pytest.raises(NotAllowed):
        next(looks)
