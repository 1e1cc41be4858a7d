"""One row of the tables, and how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# What may never be shown, whatever was typed.
SECRET = "geheim"


@dataclass(frozen=True)
class Mistake:
    """What is typed, and what the user is told.

    Attributes:
        command: the arguments, as typed in a shell.
        words: must be among what is said; " … " stands for whatever is between two of them.
        code: the exit code.
        lines: of what is said, at most.
        environ: variables beside those of a plain shell.
        without_gpu: it is one only where there is no GPU.
    """

    command: str
    words: str
    code: int = 2
    lines: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    without_gpu: bool = False

    def check(self, code: object, said: str) -> None:
        """Makes sure that a user can do something with what was said."""
        assert code == self.code, said
        at = 0
        for part in self.words.split(" … "):
            assert part in said[at:], said
            at = said.index(part, at) + len(part)
        assert len(said.splitlines()) <= self.lines, said
        assert "Traceback" not in said
        assert "site-packages" not in said
        assert SECRET not in said


def table(
    told: Mapping[str, str], before: str = "", script: str = "", **rest: Any
) -> list[Mistake]:
    """Rows of what is typed and what is said of it.

    Args:
        told: what is said, by what is typed in a shell: variables, and the arguments.
        before: comes before the arguments.
        script: comes after them.
        **rest: what else is the same for all.
    """
    rows = []
    for typed, words in told.items():
        variables = re.match(r"([A-Z_]+=\S*( |$))*", typed)
        assert variables
        command = f"{before}{typed[variables.end() :]}{script}".strip()
        environ = dict(one.split("=", 1) for one in variables.group().split())
        rows.append(Mistake(command, words, environ=environ, **rest))
    return rows


def lines(found: Mapping[str, str]) -> dict[str, str]:
    """What is said, by what is typed; several lines of which the same is said stand together."""
    return {line: words for words, typed in found.items() for line in typed.split("; ")}
