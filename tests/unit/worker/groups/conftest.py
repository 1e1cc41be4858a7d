"""A fixture for the tests that are made on each way of regrouping."""

from __future__ import annotations

import pytest

from tests.unit.worker.groups.roads import ROADS


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest) -> str:
    """Each way that the installed torch has."""
    return str(request.param)
