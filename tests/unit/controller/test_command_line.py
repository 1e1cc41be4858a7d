"""What the controller is started with: arguments that cannot be."""

from __future__ import annotations

import pytest

from elastic_runtime.controller.__main__ import main
from elastic_runtime.errors import EXIT_USAGE


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
