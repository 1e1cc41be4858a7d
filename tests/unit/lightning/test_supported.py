"""Only what was run is let in."""

from __future__ import annotations

from importlib import metadata

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.lightning import supported


@pytest.mark.parametrize("version", ["2.5.0", "2.6.6", "2.6.0.post0"])
def test_what_was_run_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    supported.check_lightning()


@pytest.mark.parametrize("version", ["2.4.0", "2.7.0", "3.0", "1.9.5"])
def test_others_are_refused_by_name(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(UsageError, match=f"2.5 to 2.6.*{version}.*pip install"):
        supported.check_lightning()


def test_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match="not pytorch-lightning"):
        supported.check_lightning()
