"""What the controller is started with: arguments and kubeconfigs that cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.controller.__main__ import main
from elastic_runtime.controller.operator import login
from elastic_runtime.errors import EXIT_USAGE, UsageError
from tests.kube.cluster import kubeconfig

if TYPE_CHECKING:
    from pathlib import Path


def _with(**cluster: Any) -> str:
    written = kubeconfig("https://127.0.0.1:1", "default")
    written["clusters"][0]["cluster"].update(cluster)
    return json.dumps(written)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("token: {s3cret", "line 1 is no YAML"),
        ("- 1", "cannot be read"),
        ("", "cannot be read"),
        (_with(server=None), "the server None"),
        (_with(server="host:6443"), "the server 'host:6443'"),
        (_with(**{"certificate-authority": "/no/such/file"}), "cannot be read"),
        (_with(**{"certificate-authority-data": "bm9uZQ=="}), "cannot be read"),
    ],
)
def test_a_kubeconfig_that_is_none_is_a_mistake_of_the_users(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UsageError) as told:
        login()
    assert words in str(told.value)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lease-seconds", "inf"),
        ("--lease-seconds", "nan"),
        ("--lease-seconds", "0.001"),
        ("--lease-seconds", "soon"),
        ("--liveness-port", "70000"),
        ("--liveness-port", "-1"),
        ("--namespace", "../kube-system"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"{option}={value}"])
    assert ended.value.code == EXIT_USAGE
    told = capsys.readouterr().err
    assert f"argument {option}: {value!r} is no " in told
