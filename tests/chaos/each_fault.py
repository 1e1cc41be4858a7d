"""One fault in place, of each kind: ``scripts/proof/in-place-kinds`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import in_place_plan as plan
from tests.chaos.in_place_cluster import InPlaceCluster
from tests.chaos.in_place_truth import table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewEtcd


pytestmark = [pytest.mark.chaos, pytest.mark.etcd, pytest.mark.timeout(400)]


@pytest.mark.parametrize("target", [plan.Target.FIRST, plan.Target.LAST], ids=["first", "last"])
@pytest.mark.parametrize("kind", plan.KINDS, ids=lambda kind: kind.value)
def test_one_fault(tmp_path: Path, new_etcd: NewEtcd, kind: plan.Kind, target: plan.Target) -> None:
    with InPlaceCluster(tmp_path, new_etcd(), save_every="500ms", shadow=True) as cluster:
        cluster.start(3)
        cluster.strike(plan.Fault(kind, target, plan.Pace.CALM))
        if kind in plan.CURES:
            cluster.strike(plan.Fault(plan.CURES[kind], target, plan.Pace.EARLY))
        cluster.finish()
        print(table(cluster.stalls()))
