"""Endpoints as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.config import Endpoint, Tls
from elastic_runtime.endpoint import (
    EtcdCredentials,
    parse_endpoint,
    read_credentials,
    split_address,
)
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "backend", "expected"),
    [
        ("etcd://h", "", Endpoint("etcd", ("h:2379",))),
        ("etcd://h1:1,h2/a/b/", "", Endpoint("etcd", ("h1:1", "h2:2379"), prefix="a/b")),
        ("etcd://h1,h2", "etcd-v3", Endpoint("etcd", ("h1:2379", "h2:2379"))),
        ("etcds://h", "", Endpoint("etcd", ("h:2379",), secure=True)),
        ("etcd://me@h", "", Endpoint("etcd", ("h:2379",), user="me")),
        ("h:1", "etcd", Endpoint("etcd", ("h:1",))),
        ("h", "etcd-v3", Endpoint("etcd", ("h:2379",))),
        ("[fe80::1]:7", "etcd", Endpoint("etcd", ("[fe80::1]:7",))),
        ("c10d://h:1", "", Endpoint("c10d", ("h:1",))),
        ("c10d://[::1]", "", Endpoint("c10d", ("[::1]:29400",))),
        ("h", "c10d", Endpoint("c10d", ("h:29400",))),
        ("localhost:0", "c10d", Endpoint("c10d", ("localhost:0",))),
    ],
)
def test_good_endpoints(text: str, backend: str, expected: Endpoint) -> None:
    assert parse_endpoint(text, backend) == expected


@pytest.mark.parametrize(
    ("text", "backend", "words"),
    [
        ("h:1", "", "does not say what it is: write c10d://h:1 or etcd://h:1"),
        ("http://h", "", "unknown kind of store"),
        ("etcd://h", "c10d", "--rdzv-backend is c10d, but the endpoint 'etcd://h' says etcd"),
        ("h", "zookeeper", "'zookeeper' is not known"),
        ("c10d://a,b", "", "has 2 hosts"),
        ("c10d://h/x", "", "c10d://host:port is all"),
        ("c10d://me@h", "", "c10d://host:port is all"),
        ("etcd://", "", "is no host"),
        ("etcd://h,,g", "", "is no host"),
        ("etcd://h:x", "", "'x' in the endpoint 'etcd://h:x' is no port"),
        ("etcd://h:0", "", "is no port"),
        ("c10d://h:65536", "", "is no port"),
        ("::1", "c10d", "an IPv6 address goes in brackets"),
        ("etcd://@h", "", "without a user"),
        ("c10d://a..b:1", "", "'a..b:1' in the endpoint 'c10d://a..b:1' is no host: label empty"),
        (f"c10d://{'a' * 70}", "", "is no host: label too long"),
        ("etcd://h/a b", "", "the prefix 'a b'"),
    ],
)
def test_bad_endpoints(text: str, backend: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text, backend)
    assert words in str(caught.value)


_PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=30)


@given(
    _PASSWORDS, st.sampled_from(["etcd://me:{}@h", "etcds://:{}@h:1/x", "me:{}@h", "c10d://a:{}@h"])
)
def test_a_password_in_an_endpoint_is_refused_and_never_shown(password: str, form: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(form.format(password), "")
    with pytest.raises(UsageError) as other:
        parse_endpoint(form.format("another"), "")
    assert str(caught.value) == str(other.value), "it does not depend on the password"


def test_endpoints_survive_being_written_and_read() -> None:
    for text in ("etcd://h1:1,h2:2/a/b", "etcds://h:1/elastic", "c10d://[::1]:5"):
        assert str(parse_endpoint(text)) == text


def test_access_is_taken_over(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    access = EtcdCredentials("me", "geheim", Tls(ca=str(ca)))
    endpoint = parse_endpoint("h", "etcd", access)
    assert (endpoint.user, endpoint.password, endpoint.secure) == ("me", "geheim", True)
    assert "geheim" not in repr(endpoint) + str(endpoint) + repr(access)


@pytest.mark.parametrize(
    ("text", "access", "words"),
    [
        ("etcd://me@h", EtcdCredentials("you"), "names the user 'me', --etcd-user 'you'"),
        ("etcd://h", EtcdCredentials(password="x"), "but no user: add --etcd-user"),
        ("etcds://h", EtcdCredentials(tls=Tls(cert="c")), "belong together"),
        ("etcds://h", EtcdCredentials(tls=Tls(ca="/nowhere/ca")), "--etcd-ca: there is no file"),
    ],
)
def test_access_that_does_not_fit(text: str, access: EtcdCredentials, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text, "", access)
    assert words in str(caught.value)


def test_a_certificate_without_tls_is_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    with pytest.raises(UsageError, match="etcds://"):
        parse_endpoint("etcd://h", "", EtcdCredentials(tls=Tls(ca=str(ca))))


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("from file\n")
    environ = {"ELASTIC_ETCD_PASSWORD": "from environment"}
    assert read_credentials({}, environ).password == "from environment"
    assert read_credentials({"etcd_password_file": str(path)}, environ).password == "from file"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_password_file_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="--etcd-password-file"):
        read_credentials({"etcd_password_file": str(path)}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", 0)),
        ("*", ("", 0)),
        (":5", ("", 5)),
        ("10.0.0.5", ("10.0.0.5", 0)),
        ("node-a:7", ("node-a", 7)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses_to_listen_at(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, "--listen") == expected


@pytest.mark.parametrize("text", ["a:b", "::1", ":70000", "h:1:2"])
def test_no_addresses_to_listen_at(text: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        split_address(text, "--listen")
