"""What a worker of these jobs writes down, for ``scripts/torch_versions.py`` to read.

A folder holds all that a job leaves: each worker appends its steps to ``worker-RANK-PID`` there,
and ends with a line that says how its training came out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

STEPS = 100  # a job has done all of them, and each counts once
SAVE_EVERY = 10  # steps
FAULT_AFTER = 25  # steps that both workers have made before one of them is killed
# Nobody trains beyond this before the kill: a busy machine must not be done before the fault.
NOT_BEYOND = 60
# Such a file says that the kill is under way.
STRUCK = "struck"
STEP_SECONDS = 0.01
PATIENCE = 120.0


class Diary:
    """Of one worker."""

    def __init__(self) -> None:
        self.folder = Path(sys.argv[1])
        name = f"worker-{os.environ['RANK']}-{os.getpid()}"
        self._file = (self.folder / name).open("a", buffering=1)

    def begins(self, step: int) -> None:
        """This process trains from this step on; in place once in each world.

        Args:
            step: how many steps its state has behind it.
        """
        self._write(what="begins", step=step)

    def step(self, step: int) -> None:
        """A step is done; waits there if the fault is overdue."""
        self._write(what="step", step=step)
        time.sleep(STEP_SECONDS)
        deadline = time.monotonic() + PATIENCE
        while step == NOT_BEYOND and not (self.folder / STRUCK).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody has killed a worker within {PATIENCE:.0f} s")
            time.sleep(0.01)

    def ends(self, step: int, weights: Iterable[torch.Tensor], optim: Any) -> None:
        """The training is over.

        Args:
            step: how many steps it has behind it, as the script counts.
            weights: of the whole model; those of a sharded one are put together.
            optim: Adam, which has counted as well.
        """
        import torch

        flat = torch.cat([weight.detach().flatten() for weight in weights])
        counted = {int(state["step"]) for state in optim.state.values()}
        self._write(
            what="ends",
            step=step,
            counted=sorted(counted),
            finite=bool(torch.isfinite(flat).all()),
            digest=hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
            torch=torch.__version__,
        )

    def _write(self, **note: Any) -> None:
        rank = int(os.environ["RANK"])  # in place it may change
        print(json.dumps({**note, "pid": os.getpid(), "rank": rank}), file=self._file)
