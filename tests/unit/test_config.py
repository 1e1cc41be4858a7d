"""Settings that exclude each other, what fields were once called, and endpoints."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.cli.flags.flag_options import OURS
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Timeouts, Tls
from elastic_runtime.endpoint import (
    EtcdCredentials,
    parse_endpoint,
    read_credentials,
    split_address,
)
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import FENCE_RESERVE

if TYPE_CHECKING:
    from pathlib import Path


CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("h:1",)), "r")


@pytest.mark.parametrize("grace", [0.2, 1.2])
def test_a_fence_leaves_time_to_stop_the_workers(grace: float) -> None:
    times = Timeouts(broken_grace=grace, fence_timeout=1000.0)
    shortest = times.shortest_fence
    assert shortest * FENCE_RESERVE >= grace + 1.0
    assert shortest >= times.lease_ttl + grace + 1.0
    CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence_timeout=shortest))
    with pytest.raises(UsageError, match=f"fence_timeout=.*; give {shortest:g} s or more"):
        CONFIG.with_(timeouts=Timeouts(broken_grace=grace, fence_timeout=shortest - 0.1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_nodes": 0}, "min_nodes=0: a job needs at least one node"),
        ({"max_nodes": 0}, "max_nodes=0: a job needs at least one node"),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes=3, max_nodes=2: the minimum 3 is above"),
        ({"node_unit": 2}, "node_unit=2: it must lie between 1 and the maximum of 1 nodes"),
        ({"workers": 0}, "workers=0: a node runs at least one worker"),
        ({"min_workers": 2}, "min_workers=2: it must lie between 1 and the 1 workers of a node"),
        ({"max_restarts": -1}, "max_restarts=-1: it cannot be negative"),
        ({"node_life": -1}, "node_life=-1: it cannot be negative"),
        ({"node_topology": ("a", "")}, "node_topology=a/: level 2 is empty"),
        ({"node_topology": "a/b"}, "node_topology=a///b: level 2 has a character that no level"),
        ({"metrics_port": 70000}, "metrics_port=70000: it must lie between 0 and 65535"),
    ],
)
def test_what_no_job_can_be_run_with(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        CONFIG.with_(**changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grace", -1.0, "grace=-1.0: a time cannot be negative; give 0 or more seconds"),
        ("hang_timeout", float("nan"), "hang_timeout=nan: a time cannot be negative; give 0"),
        ("lease_ttl", 0.0, "lease_ttl=0.0: nothing can happen in no time; give more than 0"),
        ("join_timeout", -2.0, "join_timeout=-2.0: nothing can happen in no time; give more"),
    ],
)
def test_a_time_out_that_nothing_can_wait_for(name: str, value: float, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Timeouts(**{name: value})
    assert str(caught.value).startswith(message)


def test_a_flag_of_a_time_out_is_called_as_its_field() -> None:
    names = {field.name for field in fields(Timeouts)}
    assert {option.dest for option in OURS if "time-outs" in option.group} <= names


@pytest.mark.parametrize("former", ["connect", "join", "rejoin", "fence", "hang", "kill", "probe"])
def test_a_former_name_still_works_and_warns(former: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=f"Timeouts.{former} is now called {former}_timeout"
    ):
        times = Timeouts(**{former: 20.0})
    assert times == Timeouts(**{f"{former}_timeout": 20.0})
    with pytest.warns(DeprecationWarning):
        assert getattr(times, former) == 20.0
    with pytest.warns(DeprecationWarning):
        assert replace(times, **{former: 21.0}) == Timeouts(**{f"{former}_timeout": 21.0})


# ---------------------------------------------------------------- endpoints as people write them


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


def test_access_is_taken_over_and_a_certificate_without_tls_is_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    access = EtcdCredentials("me", "geheim", Tls(ca=str(ca)))
    endpoint = parse_endpoint("h", "etcd", access)
    assert (endpoint.user, endpoint.password, endpoint.secure) == ("me", "geheim", True)
    assert "geheim" not in repr(endpoint) + str(endpoint) + repr(access)
    with pytest.raises(UsageError, match="etcds://"):
        parse_endpoint("etcd://h", "", EtcdCredentials(tls=Tls(ca=str(ca))))


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
