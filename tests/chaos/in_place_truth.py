"""What must be true of a job in place in the end, and what all that was done to it has cost."""

from __future__ import annotations

import time
from datetime import datetime
from itertools import accumulate, islice, pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING

import torch

import elastic_runtime as elastic
from tests.chaos.in_place_job import Points, digest, learn, loader_of, network, tale_after
from tests.chaos.in_place_plan import Kind
from tests.model.history import Committed, Strike, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from tests.chaos.fleet import Node
    from tests.chaos.in_place_plan import Fault
    from tests.chaos.in_place_sight import Checkpoints, Histories

_GONE = "waits for ranks that are gone"
# Saves that are under way, or were given up a moment ago.
_UNFINISHED = 3


def broken_rules(
    histories: Histories, strikes: Sequence[Strike], checkpoints: Checkpoints, *, tells: bool
) -> list[str]:
    """What in a history breaks the guarantee: the first ones tell most.

    Args:
        histories: of the job.
        strikes: what was done to its processes.
        checkpoints: which ones there were.
        tells: whether the script moves a counter on with each step.
    """
    batches = list(islice(_batches(), max((r.step for r in histories.records), default=0) + 1))
    tales = list(accumulate((sum(batch) for batch in batches), tale_after, initial=0))
    return violations(
        histories.records,
        [*strikes, *histories.strikes],
        lambda step: batches[step - 1],
        checkpoints.kept,
        tales.__getitem__ if tells else None,
    )


def forsaken(nodes: Sequence[Node], histories: Histories) -> list[Strike]:
    """Workers that their agents have ended since nothing else could release them.

    Where a peer resets a connection just while gloo sends, gloo keeps that error to itself now and
    then: the worker waits for somebody who has gone, nothing can release it, and it is replaced.
    That it stays rare is for the caller to check.
    """
    offset = time.monotonic_ns() - time.time_ns()
    ended = []
    for node in nodes:
        mine = histories.of([node.mark])
        for event in node.events():
            if event["event"] != "worker.stuck" or _GONE not in event["why"]:
                continue
            told = datetime.fromisoformat(event["timestamp"]).timestamp()
            at = int(told * 1e9) + offset
            born = [one for one in mine if one.born < at]
            worker = max(born, key=lambda one: one.born)
            ended.append(Strike(at, worker.name, "killed"))
    return ended


def check_weights(directory: Path, ranks: int, steps: int) -> None:
    """Each rank has saved the weights that a single process has after so many steps.

    After some 60,000 steps the training makes what it likes of the last bit of a weight, which the
    order of a sum decides: more than of a twin that begins a bit apart cannot be asked.
    """
    saved = [torch.load(path) for path in directory.iterdir()]
    assert len(saved) == ranks
    alone, twin = _weights_after(steps), _weights_after(steps, apart=1e-15)
    drift = max(float((alone[name] - twin[name]).abs().max()) for name in alone)
    print(f"weights of a twin after {steps} steps: {drift:.1e} apart")
    for name, expected in alone.items():
        for weights in saved:
            torch.testing.assert_close(weights[name], expected, rtol=0, atol=max(1e-5, 10 * drift))


def check_logs(nodes: Sequence[Node], faults: Sequence[Fault]) -> None:
    """No agent was surprised, and nobody was taken to hang who did not."""
    hangs = sum(fault.kind is Kind.HANG for fault in faults)
    told = [e for node in nodes for e in node.events() if e.get("event") == "worker.hangs"]
    assert len(told) <= hangs, told
    surprised = [n.name for n in nodes if "Traceback (most" in n.log.read_text(errors="replace")]
    assert not surprised, f"tracebacks in the logs of {surprised}"


def check_saved(directory: Path, checkpoints: Checkpoints, histories: Histories) -> None:
    """The newest checkpoint is the state of that step, and few saves were left half-done."""
    assert len(checkpoints.unfinished()) <= _UNFINISHED, checkpoints.unfinished()
    newest = checkpoints.newest
    assert newest is not None, "nothing was saved"
    model, optim = network()
    state = elastic.State(model=model, optim=optim, loader=loader_of(), tale=0)
    assert elastic.load(directory, state) == newest.step
    commits = (one for one in histories.records if isinstance(one, Committed))
    assert digest(model, optim) in {one.digest for one in commits if one.step == newest.step}


def stalls(histories: Histories, struck: Sequence[tuple[Fault, float]]) -> dict[str, list[float]]:
    """By kind: for how long no step was committed anywhere, at each fault, in seconds.

    Args:
        histories: of the job.
        struck: each fault with when it was brought about, in seconds on the monotonic clock.
    """
    ends = [at for _, at in struck[1:]] + [float("inf")]
    commits = sorted(r.at / 1e9 for r in histories.records if isinstance(r, Committed))
    found: dict[str, list[float]] = {}
    for (fault, began), end in zip(struck, ends, strict=True):
        gaps = [b - a for a, b in pairwise(commits) if b > began and a < end]
        found.setdefault(fault.kind.value, []).append(max(gaps, default=0.0))
    return found


def table(seconds: dict[str, list[float]]) -> str:
    """How many stalls of each kind: median, 95 % and longest, in seconds."""
    lines = []
    for kind, all_of_it in sorted(seconds.items()):
        most = quantiles(all_of_it, n=20)[-1] if len(all_of_it) > 1 else all_of_it[0]
        figures = f"{median(all_of_it):6.2f} {most:6.2f} {max(all_of_it):6.2f}"
        lines.append(f"{kind:62} {len(all_of_it):4} {figures}")
    return "\n".join(lines)


def _batches() -> Iterator[list[int]]:
    """All global batches, one after the other."""
    order = loader_of().batch_sampler
    while True:
        yield from order
        order.epoch += 1


def _weights_after(steps: int, apart: float = 0.0) -> dict[str, Any]:
    """The weights of a single process that nothing happens to, begun by such a part greater."""
    model, optim = network()
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(1.0 + apart)
    points = Points()
    for batch in islice(_batches(), steps):
        _, inputs, targets = zip(*(points[index] for index in batch), strict=True)
        learn(model, optim, (batch, torch.stack(inputs), torch.stack(targets)))
    return dict(model.state_dict())
