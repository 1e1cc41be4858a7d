"""Fork servers that many tests share; starting a warm one takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.workers.desk import ScriptDesk

if TYPE_CHECKING:
    from collections.abc import Iterator

ARGS = ("--lr", "0.1", "local=${local_rank}")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptDesk]:
    """Two workers, forked from a server that has imported torch, NumPy and the data loader."""
    desk = ScriptDesk(tmp_path_factory.mktemp("warm"), *ARGS, workers=2)
    ready = desk.ready()
    assert ready.why_cold == "", ready.why_cold
    yield desk
    desk.close()


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptDesk]:
    """Two workers, each a fresh interpreter."""
    desk = ScriptDesk(tmp_path_factory.mktemp("cold"), *ARGS, workers=2, cold=True)
    desk.ready()
    yield desk
    desk.close()


@pytest.fixture(params=["warm", "cold"])
def desk(request: pytest.FixtureRequest) -> ScriptDesk:
    """Both kinds, one after the other."""
    found: ScriptDesk = request.getfixturevalue(request.param)
    return found
