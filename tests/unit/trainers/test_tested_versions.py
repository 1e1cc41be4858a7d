"""Versions that an adapter was never run with are refused by name."""

from __future__ import annotations

from importlib import import_module, metadata

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.trainers.tested_versions import AdapterVersions

VERSIONS = AdapterVersions("trainer", (1, 9), (2, 0), "which may differ")


# What each adapter does first. They are imported here, where they find the versions that there are.
CHECKS = {
    name: getattr(import_module(f"elastic_runtime.{name}.supported"), f"check_{name}")
    for name in ("accelerate", "lightning", "torchtitan", "transformers")
}


@pytest.mark.parametrize(
    ("found", "fits"), [("1.8.9", 0), ("1.9", 1), ("1.10.0rc1", 1), ("2.1", 0)]
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, found: str, fits: int
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    if fits:
        VERSIONS.check("")
        return
    with pytest.raises(UsageError, match=rf"trainer 1\.9 to 2\.0, and this is {found}, which may"):
        VERSIONS.check("")


_RUN = "accelerate 1.10.0, accelerate 1.15.9, lightning 2.5.0, lightning 2.6.0.post0, "
_RUN += "torchtitan 0.3.0, torchtitan 0.3.9, transformers 5.3.0, transformers 5.24.1"
_NEVER = "accelerate 1.9.0, accelerate 1.16.0, lightning 2.4.0, lightning 2.7.0, "
_NEVER += "torchtitan 0.2.2, torchtitan 0.4.0, transformers 5.2.0, transformers 5.25.0"


@pytest.mark.parametrize("version", _RUN.split(", "))
def test_what_was_run_is_let_in(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    adapter, found = version.split()
    monkeypatch.setattr(metadata, "version", lambda _: found)
    CHECKS[adapter]()


@pytest.mark.parametrize("version", _NEVER.split(", "))
def test_what_was_never_run_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    adapter, found = version.split()
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(UsageError, match=rf"{adapter} \S+ to \S+, and this is {found}, .*install"):
        CHECKS[adapter]()


@pytest.mark.parametrize(
    ("adapter", "missing", "said"),
    [
        ("accelerate", "accelerate", r"there is none; pip install 'elastic-runtime\[accelerate\]'"),
        ("lightning", "lightning", "not pytorch-lightning"),
        ("transformers", "transformers", "no transformers; pip install"),
        ("transformers", "accelerate", "no accelerate; pip install"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, adapter: str, missing: str, said: str
) -> None:
    def version(package: str) -> str:
        if package == missing:
            raise metadata.PackageNotFoundError
        return "5.24.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UsageError, match=said):
        CHECKS[adapter]()
