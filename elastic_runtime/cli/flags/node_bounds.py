"""How many nodes a job has, from ``--min``, ``--max``, ``--nnodes`` and ``--local-nodes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.config import InvalidSetting, check_bounds
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import MAX_LOCAL_NODES

if TYPE_CHECKING:
    from elastic_runtime.cli.flags.setting_sources import Setting, Settings


@dataclass(frozen=True)
class Bounds:
    """How many nodes train, at least and at most."""

    low: int
    high: int


def read_bounds(settings: Settings) -> Bounds:
    """Finds the bounds of the world from ``--min``, ``--max``, ``--nnodes``, ``--local-nodes``.

    Raises:
        UsageError: both spellings at once, or bounds that no world fits.
    """
    nnodes, local = settings.of("nnodes"), settings.of("local_nodes")
    if local.value < 1:
        raise UsageError(f"{local}: at least one node runs here")
    if local.value > MAX_LOCAL_NODES:
        raise UsageError(f"{local}: one machine runs {MAX_LOCAL_NODES} nodes at most")
    low, low_from = _bound(settings.of("min"), nnodes, 0)
    high, high_from = _bound(settings.of("max"), nnodes, 1)
    if low is None:
        low = 1
    if high is None:
        high = max(low, local.value)
    try:
        check_bounds(low, high)
    except InvalidSetting as error:
        sources = {"min_nodes": str(low_from), "max_nodes": str(high_from)}
        said = dict.fromkeys(sources[name] for name in error.values)  # --nnodes gives both
        raise UsageError(f"{' and '.join(said)}: {error.why}") from None
    return Bounds(low, high)


def _bound(own: Setting, nnodes: Setting, index: int) -> tuple[int | None, Setting]:
    if own.given and own.level == nnodes.level:
        raise UsageError(f"{own} and {nnodes} say the same thing: keep one of them")
    if own.level > nnodes.level:
        return own.value, own
    return (nnodes.value[index] if nnodes.given else None), nnodes
