#!/usr/bin/env python3
"""Draws docs/timeline.svg: what a killed worker costs the others, from a real job.

    .venv/bin/python scripts/timeline.py

It starts three workers that train in place, kills the middle one, and draws each committed step of
each worker around that moment. ``record`` is the job, ``draw`` the picture.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "timeline.svg"
PATIENCE = 60.0
VICTIM = 1  # its local rank
STEP_MS = 25

SCRIPT = """
import json, os, sys, time

BEGAN = time.monotonic()

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import elastic_runtime as elastic

folder, step_ms, local_rank = sys.argv[1], float(sys.argv[2]), int(os.environ["LOCAL_RANK"])
notes = open(f"{folder}/worker-{local_rank}-{os.getpid()}", "w", buffering=1)
model = nn.Linear(8, 1)
optim = torch.optim.SGD(model.parameters(), lr=0.01)
state = elastic.State(model=model, optim=optim)


def note(what, at, **more):
    more |= {"what": what, "at": at, "worker": local_rank, "pid": os.getpid()}
    print(json.dumps(more), file=notes)


def train(world):
    ddp = DistributedDataParallel(model, init_sync=False)
    note("enters", time.monotonic(), round=world.round, size=world.size)
    while not os.path.exists(f"{folder}/enough") or state.step % 50:
        began = time.monotonic()
        time.sleep(step_ms / 1000)
        optim.zero_grad()
        ddp(torch.ones(4, 8)).mean().backward()
        optim.step()
        done = state.step + 1, time.monotonic()
        try:
            state.commit()
        finally:
            note("step", done[1], began=began, step=done[0], round=world.round)


note("starts", BEGAN)
elastic.run(train, state)
"""


@dataclass(frozen=True)
class Step:
    """One step that one worker has committed; times in seconds.

    Attributes:
        worker: its local rank.
        round: in which round.
        number: of the step, from 1.
        began, ended: when.
    """

    worker: int
    round: int
    number: int
    began: float
    ended: float


@dataclass(frozen=True)
class Story:
    """What happened, with the fault at 0; times in seconds.

    Attributes:
        steps: of all workers.
        back: when the new process came to its first line.
    """

    steps: tuple[Step, ...]
    back: float

    def gap(self, before: int) -> tuple[float, float]:
        """When the last step of a round ended on any worker, and the first of the next one."""
        last = max(step.ended for step in self.steps if step.round == before)
        first = min(step.ended for step in self.steps if step.round == before + 1)
        return last, first


def record() -> Story:
    """Runs the job, kills a worker, and waits until all train again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "elastic_runtime", "--nproc-per-node=3"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        job = subprocess.Popen(
            [*command, str(folder / "train.py"), name, str(STEP_MS)],
            env=environ,
            stderr=subprocess.DEVNULL,
        )
        try:
            pids = {note["worker"]: note["pid"] for note in _until(folder, 1, 20)}
            fault = time.monotonic()
            os.kill(pids[VICTIM], signal.SIGKILL)
            notes = _until(folder, 3, 20)
            (folder / "enough").touch()
            job.wait(PATIENCE)
        finally:
            job.kill()
            job.wait()
    began = min(n["round"] for n in notes if n["what"] == "step") - 1  # 1 is the first round here
    steps = (
        Step(n["worker"], n["round"] - began, n["step"], n["began"] - fault, n["at"] - fault)
        for n in notes
        if n["what"] == "step"
    )
    back = max(note["at"] for note in notes if note["what"] == "starts") - fault
    return Story(tuple(sorted(steps, key=lambda step: step.ended)), back)


def _until(folder: Path, number: int, count: int) -> list[dict[str, float]]:
    """All notes, once each of three workers has made so many steps in one round.

    Args:
        folder: where the notes are.
        number: which round, as the workers count.
        count: how many steps.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        notes = [
            json.loads(line)
            for file in folder.glob("worker-*")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        made = [n["worker"] for n in notes if n["what"] == "step" and n["round"] == number]
        if all(made.count(worker) >= count for worker in range(3)):
            return notes
        time.sleep(0.02)
    sys.exit(f"no round {number} with {count} steps within {PATIENCE:.0f} s")


# ---------------------------------------------------------------- the picture

LEFT, TOP, LANE, BAR = 92, 74, 46, 26
SCALE = 1.0  # pixels a millisecond
BEFORE, AFTER = 150, 160  # milliseconds that are shown before the fault, after the newcomer's step

# Colours by class; the second set is for dark pages.
STYLE = """
    .paper { fill: #ffffff } .text, .number { fill: #24292f } .faint { fill: #57606a }
    .line { stroke: #57606a } .start { fill: none; stroke: #57606a; stroke-dasharray: 3 3 }
    .one { fill: #b6d4fb } .two { fill: #ffd8a8 } .three { fill: #b2e2bd }
    .gap { fill: #cf222e; fill-opacity: 0.12 } .fault { stroke: #cf222e } .said { fill: #b01e28 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117 } .text, .number { fill: #f0f6fc } .faint { fill: #9da7b3 }
      .line, .start { stroke: #9da7b3 }
      .one { fill: #1f4f8f } .two { fill: #8a5a1c } .three { fill: #23683a }
      .gap { fill: #ff7b72; fill-opacity: 0.2 } .fault { stroke: #ff7b72 } .said { fill: #ff9a93 }
    }
"""


def draw(story: Story) -> str:
    """The picture as SVG."""
    lost, found = story.gap(1)
    left, joined = story.gap(2)
    end = joined * 1000 + AFTER
    width, height = round(LEFT + (BEFORE + end) * SCALE + 16), TOP + 3 * LANE + 66
    stall, joining = round((found - lost) * 1000), round((joined - left) * 1000)
    told = (
        f"Three workers train. Worker {VICTIM} is killed. {stall} ms after the last step of all "
        f"three the other two have done the next one, in the same processes. A new process starts "
        f"meanwhile; when it joins, {joining} ms pass from one step to the next."
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
        f"<title>A worker is killed</title><desc>{escape(told)}</desc><style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
    ]
    bottom = TOP + 3 * LANE - (LANE - BAR)
    for (begin, over), label, said in (
        ((lost, found), 0.0, f"{stall} ms without a step"),
        ((left, joined), left, f"it joins: {joining} ms"),
    ):
        x, wide = _x(begin), max(1.0, (over - begin) * 1000 * SCALE)
        parts.append(
            f'<rect class="gap" x="{x:.1f}" y="{TOP - 10}" width="{wide:.1f}" '
            f'height="{bottom - TOP + 20}"/>'
        )
        parts.append(_text(_x(label) + 5, TOP - 16, said, "said", "start"))
    parts += [_text(LEFT - 14, _y(n) + 17, f"worker {n}", "text", "end") for n in range(3)]
    parts += [_bar(step) for step in story.steps if -BEFORE < step.began * 1000 < end - STEP_MS]
    parts += _newcomer(story, joined)
    x, y = _x(0.0), _y(VICTIM)
    parts.append(
        f'<path class="fault" stroke-width="3" d="M{x - 7:.1f} {y + 6}l14 14m0 -14l-14 14"/>'
    )
    parts.append(_text(x, 26, "kill -9 worker 1", "said"))
    parts.append(f'<path class="fault" stroke-dasharray="2 3" d="M{x:.1f} 32V{y + 2}"/>')
    parts += _axis(end, bottom)
    parts += _legend(height - 12)
    return "\n".join((*parts, "</svg>", ""))


def _x(seconds: float) -> float:
    return LEFT + (BEFORE + seconds * 1000) * SCALE


def _y(worker: int) -> int:
    return TOP + worker * LANE


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _bar(step: Step) -> str:
    x, wide, y = _x(step.began), (step.ended - step.began) * 1000 * SCALE, _y(step.worker)
    kind = ("one", "two", "three")[min(step.round, 3) - 1]
    bar = (
        f'<rect class="{kind}" x="{x + 0.5:.1f}" y="{y}" width="{max(1.0, wide - 1):.1f}" '
        f'height="{BAR}" rx="2"/>'
    )
    if wide < 18:
        return bar
    return bar + (
        f'<text class="number" x="{x + wide / 2:.1f}" y="{y + 17}" text-anchor="middle" '
        f'font-size="10">{step.number}</text>'
    )


def _newcomer(story: Story, joined: float) -> list[str]:
    """The time in which the new process runs the script, until it trains."""
    first = min(s.began for s in story.steps if s.worker == VICTIM and s.round == 3)
    x, wide, y = _x(story.back), (first - story.back) * 1000 * SCALE, _y(VICTIM)
    box = f'<rect class="start" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="2"/>'
    return [box, _text(x + wide / 2, y + 17, "a new process runs the script", "faint")]


def _axis(end: float, bottom: float) -> list[str]:
    y = bottom + 16
    parts = [f'<path class="line" d="M{LEFT} {y}H{LEFT + (BEFORE + end) * SCALE:.0f}"/>']
    for at in range(-100, int(end), 100):
        x = _x(at / 1000)
        parts.append(f'<path class="line" d="M{x:.1f} {y}v4"/>')
        parts.append(_text(x, y + 17, f"{at} ms" if at else "0", "faint"))
    return parts


def _legend(y: float) -> list[str]:
    parts, x = [], LEFT
    for kind, words in (
        ("one", "round 1: three workers"),
        ("two", "round 2: the two that are left"),
        ("three", "round 3: three again"),
    ):
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 18, y, words, "faint", "start"))
        x += 40 + 7 * len(words)
    return parts


def main() -> None:
    """Records a job and draws it."""
    PICTURE.write_text(draw(record()))
    print(f"{PICTURE.relative_to(ROOT)} is drawn")


if __name__ == "__main__":
    main()
