"""Which functions ``elastic.run`` can call with a world."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.train_signature import check_signature


def two(world: Any, data: Any) -> None:
    pass


@pytest.mark.parametrize(
    "train", [lambda world: None, lambda *worlds: None, partial(two, data=1), print, dict]
)
def test_what_takes_a_world(train: Any) -> None:
    check_signature(train)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (two, r"two\(world: 'Any', data: 'Any'\).*write def two\(world\)"),
        (lambda: None, "does not take the one argument"),
        (3, "needs a function, and was given 3"),
    ],
)
def test_what_does_not_is_refused_with_what_to_write(train: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_signature(train)
