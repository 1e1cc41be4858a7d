"""A command prints a table for people, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.cli.printing import show

if TYPE_CHECKING:
    import pytest


def test_one_of_two_forms_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("json", {"name": "é"}, "for people")
    assert capsys.readouterr().out == '{"name": "é"}\n'
    show("table", {}, "for people")
    assert capsys.readouterr().out == "for people\n"


def test_nothing_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show("table", {}, "x" * 200)
    assert capsys.readouterr().out == "x" * 200 + "\n"
