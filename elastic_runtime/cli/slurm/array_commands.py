"""What ``elasticctl scale`` and ``elasticctl status`` do with a job of Slurm's that is an array."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.slurm.slurm_calls import call_slurm
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.cli.slurm.shown_job import ShownJob

_ELEMENT = re.compile(r"([0-9]{1,9})\s+(\S+)(?:\s+(\S+))?")
RUNNING, PENDING = "RUNNING", "PENDING"


@dataclass(frozen=True)
class Element:
    """An element of an array that has not ended for good.

    Attributes:
        index: in the array.
        state: as Slurm says it.
        node: where it runs; "" if it does not.
    """

    index: int
    state: str
    node: str

    def __str__(self) -> str:
        """Which it is, and where."""
        return f"{self.index} on {self.node}" if self.node else str(self.index)


@dataclass(frozen=True)
class ArrayReport:
    """What Slurm knows of an array.

    Attributes:
        job: its id.
        throttle: how many elements run at a time, at most; 0: all.
        elements: those that have not ended for good, by index.
    """

    job: str
    throttle: int
    elements: tuple[Element, ...]

    def running(self) -> list[Element]:
        """The elements that run."""
        return [element for element in self.elements if element.state == RUNNING]

    def as_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        elements = [vars(element) for element in self.elements]
        return {"job": self.job, "throttle": self.throttle, "elements": elements}

    def as_text(self) -> str:
        """How many elements are in which state, and which ones, a line for each state."""
        by_state: dict[str, list[Element]] = {}
        for element in self.elements:
            by_state.setdefault(element.state.lower(), []).append(element)
        states = sorted(by_state.items())
        said = ", ".join(f"{len(found)} {state}" for state, found in states)
        most = f" (at most {self.throttle} at a time)" if self.throttle else ""
        first = f"array {self.job}: {said or 'no element is left'}{most}"
        lines = [f"  {state}: {', '.join(map(str, found))}" for state, found in states]
        return "\n".join([first, *lines])


def read_array(shown: ShownJob) -> ArrayReport:
    """What Slurm knows of an array.

    Raises:
        SlurmRefused: Slurm does not know it, or does not answer.
    """
    jobs = f"--jobs={shown.job}"
    listed = call_slurm("squeue", "--noheader", "--array", jobs, "--format=%K %T %N")
    return ArrayReport(shown.job, shown.throttle, tuple(elements_of(listed.splitlines())))


def elements_of(lines: Iterable[str]) -> list[Element]:
    """The elements that ``squeue --array --format='%K %T %N'`` lists, by index: pure."""
    listed = filter(None, (_ELEMENT.fullmatch(line.strip()) for line in lines))
    found = (Element(int(one[1]), one[2], one[3] or "") for one in listed)
    return sorted(found, key=lambda element: element.index)


def surplus(elements: Iterable[Element], size: int) -> list[int]:
    """Which running elements have to leave so that ``size`` run: those of the highest indices."""
    running = sorted(element.index for element in elements if element.state == RUNNING)
    return running[size:]


def scale_array(shown: ShownJob, size: int | None) -> str:
    """Has Slurm run so many elements of an array at a time: those beyond leave, and are queued.

    Returns:
        What people are to be told.

    Raises:
        UsageError: that is no size.
        SlurmRefused: Slurm refuses it, or does not answer.
    """
    job = shown.job
    if size is None or size < 1:
        raise UsageError("scale to how many elements? At least one: elasticctl scale --slurm 17 4")
    report = read_array(shown)
    call_slurm("scontrol", "update", f"jobid={job}", f"ArrayTaskThrottle={size}")
    leaving = surplus(report.elements, size)
    for index in leaving:
        call_slurm("scontrol", "requeue", f"{job}_{index}")
    text = f"array {job}: at most {size} of its elements run at a time"
    if size > (left := len(report.elements)):
        text += f"; it has {left} that have not ended"
    if leaving:
        text += f"; asked to leave: {', '.join(map(str, leaving))}"
    return text
