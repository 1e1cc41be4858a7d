"""Other versions of torchtitan are refused by name, and the package can be looked at without it."""

from __future__ import annotations

from importlib import metadata

import pytest

import elastic_runtime.torchtitan as titan
from elastic_runtime.errors import UsageError
from elastic_runtime.torchtitan import supported


@pytest.mark.parametrize("found", ["0.2.2", "0.4.0", "1.0"])
def test_a_version_that_was_never_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(UsageError, match=rf"torchtitan 0\.3 to 0\.3, and this is {found}"):
        supported.check_torchtitan()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", version)
    for name in titan.__all__:
        with pytest.raises(UsageError, match=r"none; pip install 'elastic-runtime\[torchtitan\]'"):
            getattr(titan, name)
    with pytest.raises(AttributeError, match="'Trainer'"):
        titan.Trainer  # noqa: B018
