"""What tests of decisions begin with."""

from __future__ import annotations

import pytest

from tests.unit.controller.simulated import Cluster, running


@pytest.fixture
def cluster() -> Cluster:
    """A job whose two pods run."""
    return running(2)
