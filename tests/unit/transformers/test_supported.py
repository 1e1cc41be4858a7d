"""Other versions of transformers are refused by name."""

from __future__ import annotations

from importlib import metadata

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import supported


@pytest.mark.parametrize("found", ["4.57.6", "5.2.0", "5.25.0", "6.0.0"])
def test_a_version_that_was_never_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(UsageError, match=rf"transformers 5\.3 to 5\.24, and this is {found}"):
        supported.check_transformers()


@pytest.mark.parametrize("missing", ["transformers", "accelerate"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def version(package: str) -> str:
        if package == missing:
            raise metadata.PackageNotFoundError
        return "5.24.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UsageError, match=rf"no {missing}; pip install"):
        supported.check_transformers()


def test_the_version_that_is_installed_is_one_of_them() -> None:
    supported.check_transformers()
