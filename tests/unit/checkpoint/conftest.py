"""A checkpointer without an agent listens to SIGTERM; the tests' own process must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.worker import context

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _fresh_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(context, "_context", None)
    yield
    context.context().withdraw_drain()
