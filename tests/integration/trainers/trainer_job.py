"""A job under a ``Trainer`` whose history can be checked, against the same run undisturbed."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from tests.integration.in_place.job import ENVIRONMENT, Job
from tests.integration.trainers.forked_runs import run_alone

if TYPE_CHECKING:
    from pathlib import Path

TWO = ("--local-nodes", "2", "--min", "1", "--max-restarts", "100")
# One node imports the trainer once: for jobs whose nodes nothing befalls.
ONE_NODE = ("--nproc-per-node", "2", "--max-restarts", "100")
SAMPLES, GLOBAL_BATCH, SEED = 203, 10, 7
TOLERANCE = 1e-5

# What a script notes on one rank, by all that it was told: many jobs are compared with the same.
_undisturbed: dict[tuple[object, ...], list[dict[str, Any]]] = {}


class TrainerJob(Job):
    """One ``elastic-run`` of the script.

    Attributes:
        script: of all kinds.
        same_training: kinds that train as another one does, however they are saved.
        free_batches: kinds whose steps have more batches now and then.
    """

    script: ClassVar[Path]
    same_training: ClassVar[dict[str, str]] = {}
    free_batches: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        folder: Path,
        *options: str,
        kind: str = "usual",
        seconds: float = 0.1,
        environ: dict[str, str] | None = None,
        steps: int = 0,
    ) -> None:
        self._kind = kind
        self._environ = {**(environ or {}), "MAX_STEPS": str(steps)}
        words, where = options or TWO, self._environ
        super().__init__(
            folder, str(self.script), *words, kind=kind, seconds=seconds, environ=where
        )

    def finish_exactly(self, tolerance: float = TOLERANCE) -> None:
        """Ends it, and compares it with the same job on one rank without faults.

        Args:
            tolerance: by how much a weight may differ.
        """
        self.end_well()
        self.check_exactly(tolerance)

    def check_exactly(self, tolerance: float = TOLERANCE) -> None:
        """The same when it has ended, however."""
        self.check()
        self.check_samples()
        self.compare(self.said("ended"), tolerance)

    def compare(self, ends: list[dict[str, Any]], tolerance: float = TOLERANCE) -> None:
        """Compares notes of its end with those of the same job on one rank without faults."""
        whole = self.undisturbed()[-1]
        for end in ends:
            assert end["step"] == whole["step"], f"it ended early, or late: {end['step']}"
            for name, value in end["weights"].items():
                apart = _distance(value, whole["weights"][name])
                assert apart < tolerance, f"{name} differs by {apart}"

    def finish_restarted(self) -> None:
        """``finish_exactly`` for a job that redoes steps, from its last checkpoint on."""
        self.end_well()
        self.check_samples(redone=True)
        self.compare(self.said("ended"))

    def check_samples(self, *, redone: bool = False) -> None:
        """Each rank has trained on its share of the right batch, and each step was done once."""
        if self._kind in self.free_batches:
            return
        shares = {}
        rounds: dict[int, set[int]] = {}
        for note in self.said("step"):
            place = (note["rank"], note["size"])
            if place not in shares:
                shares[place] = self.shares_of(*place)
            step = note["step"] - 1
            expected = shares[place][note["epoch"]]
            of_epoch = step - sum(len(shares[place][e]) for e in range(note["epoch"]))
            assert note["indices"] == expected[of_epoch], note
            rounds.setdefault(note["step"], set()).add(note["round"])
        # The last step of a round may count although nobody was left to note it.
        numbers = set.union(*rounds.values())
        ends = {max(s for s, found in rounds.items() if number in found) for number in numbers}
        missing = set(range(1, max(rounds))) - rounds.keys() - {end + 1 for end in ends}
        assert not missing, f"steps that nobody has made: {missing}"
        if redone:
            return
        twice = {step: found for step, found in rounds.items() if len(found) > 1}
        assert not twice, f"steps that were done in more than one round: {twice}"

    def shares_of(self, rank: int, size: int) -> list[list[list[int]]]:
        """What a rank of a world notes of each step, for each of many epochs."""
        raise NotImplementedError

    def undisturbed(self) -> list[dict[str, Any]]:
        """The notes of the same script on one rank, without an agent, up to its end."""
        kind = self.same_training.get(self._kind, self._kind)
        told = (self.script, kind, *sorted(self._environ.items()))
        if told not in _undisturbed:
            own = self.folder / "undisturbed"
            own.mkdir()
            (own / "enough").touch()
            where = {**os.environ, **ENVIRONMENT, "ELASTIC_MOST_WORKERS": "2", **self._environ}
            run_alone(self.script, ["--folder", str(own), "--kind", kind], where, own)
            _undisturbed[told] = Job.read(own)
        return _undisturbed[told]

    def check_ends_of_epochs(self) -> None:
        """No epoch's end was left out, and no validation."""
        steps = {note["step"] for note in self.said("step")}
        ends = Counter(note["step"] for note in self.said("epoch") if note["rank"] == 0)
        validated = {note["step"] for note in self.said("validated")}
        of_epoch = -(-SAMPLES // GLOBAL_BATCH)
        for step in range(of_epoch, max(steps) + 1, of_epoch):
            assert ends[step], f"the epoch that ends with step {step} has no end"
            assert step in validated, f"the epoch that ends with step {step} was not validated"


def _distance(one: Any, other: Any) -> float:
    if isinstance(one, list):
        return max((_distance(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    return abs(float(one) - float(other))
