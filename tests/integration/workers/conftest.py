"""Fork servers that many tests share; starting a warm one takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.workers.worker_harness import ScriptHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

ARGS = ("--lr", "0.1", "local=${local_rank}")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptHarness]:
    """Two workers, forked from a server that has imported torch, NumPy and the data loader."""
    harness = ScriptHarness(tmp_path_factory.mktemp("warm"), *ARGS, workers=2)
    ready = harness.ready()
    assert ready.why_cold == "", ready.why_cold
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptHarness]:
    """Two workers, each a fresh interpreter."""
    harness = ScriptHarness(tmp_path_factory.mktemp("cold"), *ARGS, workers=2, cold=True)
    harness.ready()
    yield harness
    harness.close()


@pytest.fixture(params=["warm", "cold"])
def harness(request: pytest.FixtureRequest) -> ScriptHarness:
    """Both kinds, one after the other."""
    found: ScriptHarness = request.getfixturevalue(request.param)
    return found
