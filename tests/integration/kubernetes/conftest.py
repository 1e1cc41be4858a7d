"""What tests of the client share: a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kube.cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """An empty cluster."""
    fake = FakeCluster()
    yield fake
    fake.close()
