"""The table of the checkpoint benchmark: medians, and what they must reach (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.bench.checkpoints import loading, peers, saving
from scripts.bench.measure.figures import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.bench.checkpoints.contest import Sample, Size

CONTENDERS = ("limit", "ours", "torch.save", "dcp", "dcp cached")


@dataclass(frozen=True)
class Goal:
    """What ours must reach.

    Attributes:
        beside: the contender that it is compared with; "" if the figure stands for itself.
        at_most: bound of ours, in shares of the other's time.
        at_least: bound of ours, in shares of the other's speed.
    """

    beside: str = ""
    at_most: float = 0.0
    at_least: float = 0.0

    def ratio(self, ours: float, other: float) -> float:
        """Ours in shares of the other's time or speed."""
        if not self.beside:
            return ours
        return other / ours if self.at_least else ours / other

    @property
    def text(self) -> str:
        """For people."""
        if not (self.at_most or self.at_least):
            return "reported"
        bound = f"≥ {self.at_least:g}" if self.at_least else f"≤ {self.at_most:g}"
        return f"{bound} × {self.beside}" if self.beside else bound

    def is_reached(self, ratio: float) -> bool:
        """Whether the ratio is within the bounds."""
        ratio = round(ratio, 2)
        if self.at_least:
            return ratio >= self.at_least
        return not self.at_most or ratio <= self.at_most


GOALS = {
    saving.BLOCKED: Goal("limit", at_most=1.2),
    saving.DURABLE: Goal("limit", at_least=0.9),
    loading.LOAD: Goal("dcp", at_least=2.0),
    loading.RESTORE: Goal("limit", at_least=0.85),
    peers.PEER: Goal("limit", at_least=0.7),
    saving.TINY: Goal("dcp", at_most=0.25),
    saving.EXTRA: Goal(at_most=1.05),  # one copy, and a few MiB of anything
    saving.SLOWDOWN: Goal(),
}
# Figures that are no times: shares of something that the row names.
_SHARES = (saving.EXTRA, saving.SLOWDOWN)


@dataclass(frozen=True)
class Run:
    """What was measured with one size.

    Attributes:
        size: of the state.
        samples: of all rows and contenders.
    """

    size: Size
    samples: list[Sample]


def table(runs: Sequence[Run]) -> str:
    """Medians of all contenders in milliseconds (or shares), ours compared, and the goal."""
    head = f"{'figure':32} {'state':>8} {'ranks':>5}"
    lines = [head + "".join(f"{name:>11}" for name in CONTENDERS) + "  ratio  goal"]
    for goal_row in GOALS:
        for run in runs:
            medians = {
                sample.contender: quantile(sample.values, 0.5)
                for sample in run.samples
                if sample.row == goal_row
            }
            if medians:
                lines.append(_line(goal_row, run.size, medians))
    return "\n".join(lines)


def _line(row: str, size: Size, medians: dict[str, float]) -> str:
    def shown(name: str) -> str:
        if name not in medians:
            return f"{'-':>11}"
        if row in _SHARES:
            return f"{medians[name]:>10.2f}x"
        return f"{1000 * medians[name]:>8.1f} ms"

    goal = GOALS[row]
    ratio = goal.ratio(medians["ours"], medians.get(goal.beside, 1.0))
    verdict = "" if goal.is_reached(ratio) else "  MISSED"
    state = "-" if row == saving.TINY else f"{size.nbytes / (1 << 20):.0f} MiB"
    line = f"{row:32} {state:>8} {size.ranks:>5}" + "".join(map(shown, CONTENDERS))
    return f"{line}  {ratio:>5.2f}  {goal.text}{verdict}"
