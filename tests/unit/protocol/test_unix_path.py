"""A socket can be bound and reached at a path of any length."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.protocol.unix_path import address_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_path_that_is_too_long_for_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with address_of(path) as address:
            server.bind(address)
        server.listen()
        assert os.path.exists(path)
        with address_of(path) as address:
            client.connect(address)
        # The directory's descriptor is not kept.
        with pytest.raises(OSError):
            os.stat(address)


def test_a_short_path_is_left_as_it_is() -> None:
    with address_of("/run/job/s") as address:
        assert address == "/run/job/s"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), address_of(str(tmp_path / ("x" * 120) / "s")):
        pass
