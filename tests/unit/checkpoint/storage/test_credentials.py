"""What no message may show: passwords and keys in URLs and in the environment."""

from __future__ import annotations

import pytest

from elastic_runtime.checkpoint.storage.credentials import (
    secrets_around,
    secrets_of,
    without_credentials,
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3://key:hidden@bucket/run/", "s3://bucket/run"),
        ("http://host/run?token=hidden&a=b", "http://host/run"),
        ("sftp://me@host:22/a/b", "sftp://host:22/a/b"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_the_secrets_of_a_url_are_its_password_and_its_query() -> None:
    found = secrets_of("https://me:hidden@host/run?token=abc&x=def")
    assert found == {"hidden", "token=abc&x=def", "abc", "def"}
    assert secrets_of("s3://bucket/run") == frozenset()


def test_the_secrets_around_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE_SECRET", "long-enough")
    monkeypatch.setenv("MY_OTHER_TOKEN", "short")
    monkeypatch.setenv("MY_HOME_TOWN", "nothing-secret")
    found = secrets_around()
    assert "long-enough" in found
    assert not {"short", "nothing-secret"} & found
