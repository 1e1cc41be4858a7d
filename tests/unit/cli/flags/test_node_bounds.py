"""How many nodes a job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.flags.node_bounds import read_bounds
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import SettingsOf


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ("", {}, (1, 1)),
        ("--max 4", {}, (1, 4)),
        ("--min 2", {}, (2, 2)),
        ("--min 2 --max 4", {}, (2, 4)),
        ("--nnodes 2", {}, (2, 2)),
        ("--nnodes 1:4", {}, (1, 4)),
        ("--local-nodes 3", {}, (1, 3)),
        ("--local-nodes 3 --max 2", {}, (1, 2)),
        ("--local-nodes 3 --min 2", {}, (2, 3)),
        ("--max 4", {"PET_NNODES": "2:3"}, (2, 4)),
        ("--nnodes 2", {"PET_MIN": "1", "ELASTIC_MAX": "5"}, (2, 2)),
        ("", {"ELASTIC_NNODES": "2:6", "PET_MIN": "3"}, (3, 6)),
    ],
)
def test_bounds(
    settings_of: SettingsOf, arguments: str, environ: dict[str, str], expected: tuple[int, int]
) -> None:
    bounds = read_bounds(settings_of(arguments, **environ))
    assert (bounds.low, bounds.high) == expected


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ("--min 1 --nnodes 2", {}, "--min=1 and --nnodes=2 say the same thing"),
        ("--max 3 --nnodes 2", {}, "--max=3 and --nnodes=2 say the same thing"),
        ("", {"PET_MAX": "3", "PET_NNODES": "2"}, "PET_MAX=3 and PET_NNODES=2 say the same"),
        ("--min 3 --max 2", {}, "--min=3 and --max=2: the minimum 3 is above the maximum 2"),
        ("--min 3", {"ELASTIC_MAX": "2"}, "--min=3 and ELASTIC_MAX=2: the minimum 3 is above"),
        ("--nnodes 3:2", {}, "--nnodes=3:2: the minimum 3 is above the maximum 2"),
        ("--min 0", {}, "--min=0: a job needs at least one node"),
        ("--max 0", {}, "--max=0: a job needs at least one node"),
        ("--nnodes 0:2", {}, "--nnodes=0:2: a job needs at least one node"),
        ("--min -3", {}, "--min=-3: a job needs at least one node"),
        ("--local-nodes 0", {}, "--local-nodes=0: at least one node"),
    ],
)
def test_bounds_that_no_world_fits(
    settings_of: SettingsOf, arguments: str, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_bounds(settings_of(arguments, **environ))
    assert str(caught.value).startswith(message)
