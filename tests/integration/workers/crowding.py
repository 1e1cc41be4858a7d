"""A machine on which a fork server can start nothing, for as long as a test wants."""

from __future__ import annotations

from pathlib import Path


class Crowd:
    """Refuses all processes of fork servers while it is there.

    Args:
        folder: where it says so.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "no-room"
        self.environment = {
            "PYTHONPATH": str(Path(__file__).with_name("crowded")),
            "ELASTIC_TEST_NO_ROOM": str(self._file),
        }

    def come(self) -> None:
        """From now on nothing can be started."""
        self._file.touch()

    def go(self) -> None:
        """There is room again."""
        self._file.unlink()
