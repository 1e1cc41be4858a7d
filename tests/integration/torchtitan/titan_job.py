"""A job of torchtitan's whose history can be checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.integration.trainers.trainer_job import TWO, TrainerJob

TORCHTITAN = Path(sys.prefix) / "torchtitan-0.3"


def environment() -> dict[str, str]:
    """That of a process in which torchtitan can be imported."""
    assert TORCHTITAN.is_dir(), "scripts/setup installs it"
    path = os.pathsep.join(filter(None, [str(TORCHTITAN), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class TitanJob(TrainerJob):
    """One ``elastic-run`` of the script."""

    script = Path(__file__).with_name("scripts") / "titan_train.py"

    def __init__(
        self,
        folder: Path,
        *options: str,
        kind: str = "usual",
        seconds: float = 0.03,
        environ: dict[str, str] | None = None,
        steps: int = 0,
    ) -> None:
        where = {**(environ or {}), "PYTHONPATH": environment()["PYTHONPATH"]}
        words = options or TWO
        self._steps = steps
        self._whole: dict[str, Any] | None = None
        super().__init__(folder, *words, kind=kind, seconds=seconds, environ=where, steps=steps)

    def check_samples(self, *, redone: bool = False) -> None:
        """Each step had the sequences of the undisturbed job, each once."""
        expected = {note["step"]: sorted(note["rows"]) for note in self._undisturbed_steps()}
        rounds: dict[tuple[int, int], list[list[int]]] = {}
        ranks: dict[tuple[int, int], set[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        for note in self.said("trained"):
            key = note["round"], note["step"]
            rounds.setdefault(key, []).extend(note["rows"])
            ranks.setdefault(key, set()).add(note["rank"])
            sizes[key] = note["size"]
        whole = {key for key, found in ranks.items() if len(found) == sizes[key]}
        for key in sorted(whole):
            assert sorted(rounds[key]) == expected[key[1]], f"round and step {key}"
        # The step of a fault may lack the note of who has died.
        assert {step for _, step in rounds} == expected.keys(), "steps that nobody has made"
        if not redone:
            steps = [step for _, step in whole]
            assert len(steps) == len(set(steps)), "steps that were done twice"

    def _undisturbed_steps(self) -> list[dict[str, object]]:
        self.undisturbed()
        notes = self.read(self.folder / "undisturbed")
        return [note for note in notes if note["what"] == "trained"]

    def undisturbed(self, steps: int = 0) -> dict[str, Any]:
        """The last note of the same script on one rank, which is run once."""
        if self._whole is None:
            self._whole = super().undisturbed(steps or self._steps)
        return self._whole
