"""Programs in the place of Slurm's, for what a real one does only on a bad day; and a screen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from rich.console import RenderableType


class StandIns:
    """A folder of shell scripts that come first on the path.

    Each notes how it was called.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._noted = folder / "noted"
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(self, name: str, text: str) -> None:
        """A program of this name does this."""
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self._noted}\n{text}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """How they were called, in order."""
        return self._noted.read_text().splitlines() if self._noted.exists() else []


def on_screen(shown: RenderableType) -> str:
    """What a wide terminal shows."""
    console = Console(width=200, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()
