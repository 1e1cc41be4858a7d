"""Machines for each test: what runs on them is then on its account of processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ssh_machines import SshMachines, missing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def machines() -> Iterator[SshMachines]:
    """Three machines; what a test does to them it undoes."""
    if lacks := missing():
        pytest.skip(f"no {', '.join(lacks)} here; scripts/provision installs them on Debian")
    machines = SshMachines(3)
    yield machines
    machines.close()
