"""Which cluster is meant, and what it is shown: kubeconfigs, login programs and pods."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.kubernetes import cluster_access
from elastic_runtime.kubernetes.cluster_access import ClusterRef, login
from tests.integration.etcd import certificates
from tests.kube.cluster import kubeconfig
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path


def _with(**cluster: Any) -> str:
    written = kubeconfig("https://127.0.0.1:1", "default")
    written["clusters"][0]["cluster"].update(cluster)
    return json.dumps(written)


# The secret is where the loader stumbles.
_MISPLACED = json.dumps(
    {**kubeconfig("https://h:1", "default"), "users": [{"name": "tester", "token": "s3cret"}]}
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a kubeconfig is looked for."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig("https://127.0.0.1:1", "team", "s3cret")))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("token: {s3cret", "line 1 is no YAML"),
        ("- 1", "is no kubeconfig"),
        ("", "cannot be used"),
        (_with(server=None), "cannot be used"),
        (_MISPLACED, "cannot be used"),
        (_with(server="host:6443"), "the server 'host:6443'"),
        (_with(**{"certificate-authority": "/no/such/file"}), "cannot be used"),
        (_with(**{"certificate-authority-data": "bm9uZQ=="}), "cannot be used"),
    ],
)
def test_a_kubeconfig_that_is_none_is_a_mistake_of_the_users(
    text: str, words: str, config: Path
) -> None:
    config.write_text(text)
    with pytest.raises(UsageError) as told:
        login()
    assert words in str(told.value)
    assert "s3cret" not in str(told.value)


def test_a_kubeconfig_says_where_who_and_in_which_namespace(config: Path) -> None:
    found = login()
    assert (found.server, found.namespace) == ("https://127.0.0.1:1", "team")
    assert dict(found.headers) == {"authorization": "Bearer s3cret"}
    assert found.tls and found.tls.verify_mode is ssl.CERT_REQUIRED
    assert login(ClusterRef(namespace="other")).namespace == "other"
    assert "s3cret" not in repr(found), "credentials are not shown"


def test_how_the_server_is_reached_is_taken_over(config: Path) -> None:
    more = {"tls-server-name": "api.local", "proxy-url": "http://proxy:3128"}
    config.write_text(_with(server="https://10.1.2.3:6443/", **more))
    found = login()
    assert (found.server, found.tls_name) == ("https://10.1.2.3:6443", "api.local")
    assert found.proxy == "http://proxy:3128"


def test_what_is_not_to_be_checked_is_not(config: Path) -> None:
    config.write_text(_with(**{"insecure-skip-tls-verify": True}))
    tls = login().tls
    assert tls and tls.verify_mode is ssl.CERT_NONE


def test_a_login_program_is_asked_each_time(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "log-in"
    calls = tmp_path / "calls"
    version = {"apiVersion": "client.authentication.k8s.io/v1"}
    answer = {**version, "kind": "ExecCredential", "status": {"token": "from the program"}}
    program.write_text(f"#!/bin/sh\necho >> {calls}\ncat <<END\n{json.dumps(answer)}\nEND\n")
    program.chmod(0o755)
    written = kubeconfig("https://127.0.0.1:1", "default")
    asked = {**version, "command": str(program), "interactiveMode": "Never"}
    written["users"][0]["user"] = {"exec": asked}
    config.write_text(json.dumps(written))
    for _ in range(2):
        assert login().headers["authorization"] == "Bearer from the program"
    assert calls.read_text() == "\n\n"


def test_several_kubeconfigs_are_one(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = json.loads(config.read_text())
    second["contexts"][0]["name"] = "second"
    second["contexts"][0]["context"]["namespace"] = "elsewhere"
    (tmp_path / "second").write_text(json.dumps(second))
    monkeypatch.setenv("KUBECONFIG", f"{config}:{tmp_path / 'none'}:{tmp_path / 'second'}")
    assert login().namespace == "team"
    assert login(ClusterRef(context="second")).namespace == "elsewhere"


# ---------------------------------------------------------------- in a pod


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pod has: the environment, and the directory of its service account."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    account = tmp_path / "account"
    monkeypatch.setattr(cluster_access, "SERVICE_ACCOUNT", account)
    return account


@pytest.fixture
def account(pod: Path) -> Path:
    """A service account that is there."""
    pod.mkdir()
    certificates.make(pod)
    (pod / "ca.pem").rename(pod / "ca.crt")
    (pod / "namespace").write_text("mine")
    (pod / "token").write_text("first\n")
    return pod


def test_in_a_pod_its_service_account_is_used(account: Path) -> None:
    found = login()
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "mine")
    assert found.headers["Authorization"] == "Bearer first"
    assert login(ClusterRef(namespace="other")).namespace == "other"
    (account / "token").write_text("second")  # it was replaced
    assert login().headers["Authorization"] == "Bearer second"


def test_in_a_pod_nothing_is_needed_but_what_python_has(account: Path) -> None:
    program = (
        "import pathlib, sys; sys.modules['kubernetes'] = sys.modules['yaml'] = None\n"
        "from elastic_runtime.kubernetes import cluster_access as access\n"
        f"access.SERVICE_ACCOUNT = pathlib.Path({str(account)!r})\n"
        "assert access.login().namespace == 'mine'\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_pod_without_a_whole_service_account_is_told(account: Path, content: str | None) -> None:
    (account / "ca.crt").unlink()
    if content is not None:
        (account / "ca.crt").write_text(content)
    with pytest.raises(UsageError, match="this pod has no service account"):
        login()


def test_what_a_pod_cannot_have_is_told(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="this pod has no service account"):
        login()
    with pytest.raises(UsageError, match="--context names a context of a kubeconfig"):
        login(ClusterRef(context="prod"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(UsageError, match="There is no kubeconfig at ~"):
        login()
