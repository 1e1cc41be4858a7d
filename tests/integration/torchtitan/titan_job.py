"""A job of torchtitan's whose history can be checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.integration.trainers.trainer_job import TrainerJob

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
        self, folder: Path, *options: str, environ: dict[str, str] | None = None, **kind: Any
    ) -> None:
        where = {**(environ or {}), "PYTHONPATH": environment()["PYTHONPATH"]}
        super().__init__(folder, *options, environ=where, **kind)

    def check_samples(self, *, redone: bool = False) -> None:
        """Each step had the sequences of the undisturbed job, each once."""
        alone = [note for note in self.undisturbed() if note["what"] == "trained"]
        expected = {note["step"]: sorted(note["rows"]) for note in alone}
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
