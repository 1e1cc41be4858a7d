"""One row of the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
