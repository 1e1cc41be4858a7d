"""Fork servers that many tests share; starting a warm one takes seconds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.config import Entry
from tests.integration.workers.worker_harness import ScriptHarness, WorkerHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.workers.worker_harness import Begin

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


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Makes workers of a test's own, of what they run or of a script; at its end none is left."""
    with ExitStack() as stack:

        def begun(*args: Any, **settings: Any) -> WorkerHarness:
            kind = WorkerHarness if args and isinstance(args[0], Entry) else ScriptHarness
            harness = kind(tmp_path, *args, **settings)
            stack.callback(harness.close)
            return harness

        yield begun
