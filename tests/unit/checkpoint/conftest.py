"""What saves without an agent listens to SIGTERM; the tests' own process must not."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.worker import context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from elastic_runtime.checkpoint.storage.storage_contract import Storage


@pytest.fixture(autouse=True)
def _fresh_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(context, "_context", None)
    yield
    context.context().refuse_leave_requests()


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A directory, and the simplest of the object stores."""
    if request.param == "local":
        found = open_storage(tmp_path / "runs" / "digits")
    else:
        found = open_storage(f"memory://{uuid.uuid4().hex}/runs/digits")
    found.prepare()
    return found
