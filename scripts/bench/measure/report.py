"""The results of the benchmark, for people and for machines."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from scripts.bench.measure.figures import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.bench.measure.faults import Result


def table(results: Sequence[Result]) -> str:
    """Medians and 95th percentiles (nearest rank) of each fault, size and contender."""
    head = f"{'fault':16} {'nodes':>5} {'contender':15} {'back':>7} {'stall s':>15} "
    lines = [
        head + f"{'full s':>15} {'lost steps':>11}",
        " " * 46 + " median     p95" * 2 + " median max",
    ]
    for row in summary(results):
        line = f"{row['fault']:16} {row['nodes']:>5} {row['contender']:15} "
        line += f"{row['back']:>3}/{row['trials']:<3} "
        if row["back"]:
            line += f"{_seconds(row['stall_median'])} {_seconds(row['stall_p95'])} "
            line += f"{_seconds(row['full_median'])} {_seconds(row['full_p95'])} "
            line += f"{row['lost_median']:>7} {row['lost_max']:>3}"
        lines.append(line.rstrip())
        lines += [f"{'':23}{count} x {outcome}" for outcome, count in row["otherwise"].items()]
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:>7.3f}"


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each fault, size and contender."""
    groups: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        trial = result.trial
        groups.setdefault((trial.fault, trial.nodes, trial.contender), []).append(result)
    return [_row(*key, group) for key, group in sorted(groups.items())]


def _row(fault: str, nodes: int, contender: str, group: Sequence[Result]) -> dict[str, Any]:
    row: dict[str, Any] = {"fault": fault, "nodes": nodes, "contender": contender}
    back = [result.figures for result in group if result.figures]
    row |= {"trials": len(group), "back": len(back)}
    if back:
        stalls = [cost.stall for cost in back]
        fulls = [cost.full_strength for cost in back if cost.full_strength is not None]
        lost = [cost.lost_steps for cost in back]
        row |= {
            "stall_median": quantile(stalls, 0.5),
            "stall_p95": quantile(stalls, 0.95),
            "full_median": quantile(fulls, 0.5) if fulls else None,
            "full_p95": quantile(fulls, 0.95) if fulls else None,
            "lost_median": quantile(lost, 0.5),
            "lost_max": max(lost),
            "stale_steps": sum(cost.stale_steps for cost in back),
        }
    otherwise: dict[str, int] = {}
    for result in group:
        if not result.figures:
            text = f"{result.outcome.splitlines()[0]} (victim: {result.trial.victim})"
            otherwise[text] = otherwise.get(text, 0) + 1
    return {**row, "otherwise": otherwise}


def line(result: Result) -> str:
    """One result in one line."""
    trial = result.trial
    what = f"{trial.contender}, {trial.nodes} nodes, {trial.fault} ({trial.victim}): "
    if not (cost := result.figures):
        return what + result.outcome
    text = f"stall {cost.stall:.3f} s, "
    if cost.full_strength is not None:
        text += f"full strength {cost.full_strength:.2f} s, "
    text += f"{cost.lost_steps} steps lost"
    return what + text + (f", {cost.stale_steps} STALE" if cost.stale_steps else "")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": time.strftime("%Y-%m-%d"),
    }
