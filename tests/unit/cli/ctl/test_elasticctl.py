"""Which commands ``elasticctl`` has, and what it ends with."""

from __future__ import annotations

import click
import pytest

from elastic_runtime.cli.ctl import elasticctl
from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.errors import EXIT_STORE_UNREACHABLE, EXIT_USAGE, StoreUnreachable


def test_every_command_that_is_listed_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in elasticctl._COMMANDS:
        assert f"\n  {name} " in shown
        assert main([name, "--help"]) == 0


def test_a_command_that_is_not_there_is_a_mistake_of_the_users(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["stauts"]) == EXIT_USAGE
    shown = capsys.readouterr().err
    assert "stauts" in shown and "(elasticctl --help tells more)" in shown
    assert main([]) == EXIT_USAGE


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (StoreUnreachable("it is away"), EXIT_STORE_UNREACHABLE, "elasticctl: error: it is away"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left on device"), 1, "cannot write or read"),
    ],
)
def test_how_a_command_ends_that_fails(
    raised: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def status() -> None:
        raise raised

    monkeypatch.setattr(elasticctl, "_load", lambda name: status)
    muted: list[object] = []
    monkeypatch.setattr(elasticctl, "mute", muted.append)
    assert main(["status"]) == code
    assert words in capsys.readouterr().err
    assert bool(muted) == isinstance(raised, OSError), "nobody reads what is left in the buffer"
