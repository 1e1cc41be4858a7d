"""The global batch of a job, beside its checkpoints: known to a process before its optimizers.

A schedule is made from the number of steps, in ``configure_optimizers``, and that is long before a
process learns anything from the other ranks. So the first one writes down what the job's batch is.
"""

from __future__ import annotations

import json
from typing import Any

import fsspec

_NAME = "lightning.json"
_KEY = "micro_batch"


def recorded_batch(directory: str) -> int:
    """Samples in a micro-batch of all ranks, of the job that this directory belongs to.

    Args:
        directory: of the job's checkpoints, a path or a URL.

    Returns:
        0: there is no job yet, or it cannot be read now.
    """
    try:
        with _file(directory, "r") as file:
            found = json.load(file)[_KEY]
    except Exception:  # of whatever storage it is; the job's state says it once more
        return 0
    return found if isinstance(found, int) and found > 0 else 0


def record_batch(directory: str, batch: int) -> None:
    """Writes it down, if it is not there.

    Args:
        directory: see above.
        batch: samples in a micro-batch of all ranks.
    """
    if recorded_batch(directory) == batch:
        return
    try:
        with _file(directory, "w") as file:
            json.dump({_KEY: batch}, file)
    except Exception:  # saving has errors of its own, which say more
        return


def _file(directory: str, mode: str) -> Any:
    return fsspec.open(f"{directory.rstrip('/')}/{_NAME}", mode, auto_mkdir=True)
