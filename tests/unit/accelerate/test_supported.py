"""Other versions of accelerate are refused by name."""

from __future__ import annotations

from importlib import metadata

import pytest

from elastic_runtime.accelerate import supported
from elastic_runtime.errors import UsageError


@pytest.mark.parametrize("found", ["0.34.2", "1.9.0", "1.16.0", "2.0.0"])
def test_a_version_that_was_never_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(UsageError, match=rf"accelerate 1\.10 to 1\.15, and this is {found}"):
        supported.check_accelerate()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UsageError, match=r"there is none; pip install 'elastic-runtime\[accele"):
        supported.check_accelerate()


def test_the_version_that_is_installed_is_one_of_them() -> None:
    supported.check_accelerate()
