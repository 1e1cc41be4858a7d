"""What the controller makes of the samples is what Kubernetes takes."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest

from elastic_runtime.controller.decide import etcd_manifests, manifests
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.unit.deploy.test_crd import ALL_JOBS

if TYPE_CHECKING:
    from tests.unit.deploy.files import Object


@pytest.mark.parametrize("job", ALL_JOBS)
def test_its_manifests_are_valid(job: Object) -> None:
    job = deepcopy(job)
    job["metadata"]["uid"] = "0c5f2a"
    spec = JobSpec.of(job)
    for manifest in (
        manifests.worker_pod(spec, 0, 0, spec.endpoint or "10.0.0.7:2379", (1, 2)),
        manifests.worker_service(spec),
        manifests.disruption_budget(spec),
        etcd_manifests.etcd_pod(spec),
        etcd_manifests.etcd_service(spec),
    ):
        kubernetes_validate.validate(manifest, "1.34", strict=True)
