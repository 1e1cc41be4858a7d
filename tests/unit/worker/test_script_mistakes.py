"""What a script may get wrong by itself; ``tests.mistakes`` has the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.data import sample_seeds
from elastic_runtime.errors import UsageError
from elastic_runtime.worker import run_loop
from tests.mistakes.scripts import PRELUDE, SCRIPTS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(PRELUDE, found)
    return found


@pytest.mark.parametrize(("expression", "words"), SCRIPTS)
def test_a_script_is_told(
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expression: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_loop, "_ran", False)
    monkeypatch.setattr(sample_seeds, "_present", None)
    (tmp_path / "f").touch()
    with pytest.raises((UsageError, AttributeError)) as told:
        eval(expression, names)
    said, at = str(told.value), 0
    assert "\n" not in said
    for part in words.split(" … "):
        assert part in said[at:], said
        at = said.index(part, at) + len(part)
