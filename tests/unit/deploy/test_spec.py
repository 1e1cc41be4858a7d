"""The schema of ElasticJobs and the controller's own reading of them say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest

from elastic_runtime.controller.decide import etcd_manifests, manifests
from elastic_runtime.controller.spec.job_spec import InvalidSpec, JobSpec
from tests.unit.deploy import structural
from tests.unit.deploy.admission import OPEN, elasticjob
from tests.unit.deploy.test_crd import ALL_JOBS, BAD, GOOD, ON_256, WORKER, changed, smallest

if TYPE_CHECKING:
    from tests.unit.deploy.files import Object

# What the schema takes without any meaning.
IGNORED = {".schedulingPolicy"}
# What the schema refuses, and a controller that meets it all the same takes as if it were not said,
# passes on, or does by its own defaults: values that are empty, and fields that are unknown.
LENIENT: list[tuple[str, Any]] = [
    (f"{WORKER}.replica", 2),
    (f"{WORKER}.replicas", 2**31),
    ("spec.minReplica", 1),
    ("spec.rdzvEndpoint", ""),
    ("spec.rdzvId", "a/b"),
    ("spec.checkpoint", {}),
    ("spec.checkpoint", {"url": "b"}),
    ("spec.checkpoint", {"url": "s3://me:secret@b"}),
    ("spec.etcd", {"auth": {}}),
    ("spec.scheduling", {"que": "team"}),
    ("spec.failurePolicy", {}),
    ("spec.failurePolicy.rules", []),
    ("spec.failurePolicy.rules", [ON_256]),
]
STRICT = [case for case in BAD if case[:2] not in LENIENT and not case[2].startswith("status")]


class Read(dict[str, Any]):
    """A part of an object that notes which of its fields are asked for."""

    def __init__(self, path: str, fields: Object, seen: set[str]) -> None:
        super().__init__({name: self._below(path, name, fields[name], seen) for name in fields})
        self._path, self._seen = path, seen

    @classmethod
    def _below(cls, path: str, name: str, value: Any, seen: set[str]) -> Any:
        if isinstance(value, dict):
            return cls(f"{path}.{name}", value, seen)
        if isinstance(value, list):
            return [cls._below(path, f"{name}[]", each, seen) for each in value]
        return value

    def get(self, name: str, default: Any = None) -> Any:
        self._seen.add(f"{self._path}.{name}")
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self._seen.add(f"{self._path}.{name}")
        return super().__getitem__(name)


@pytest.mark.parametrize("job", ALL_JOBS)
def test_a_sample(job: Object) -> None:
    spec = JobSpec.of(job)
    assert spec == JobSpec.of(elasticjob().completed(job))
    for manifest in (
        manifests.worker_pod(spec, 0, 0, spec.endpoint or "10.0.0.7:2379", (1, 2)),
        manifests.worker_service(spec),
        manifests.disruption_budget(spec),
        etcd_manifests.etcd_pod(spec),
        etcd_manifests.etcd_service(spec),
    ):
        kubernetes_validate.validate(manifest, "1.34", strict=True)


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_good_input(path: str, value: Any) -> None:
    job = changed(smallest(), path, value)
    assert JobSpec.of(job) == JobSpec.of(elasticjob().completed(job))


@pytest.mark.parametrize(("path", "value", "field"), STRICT)
def test_what_the_schema_refuses_the_controller_refuses(path: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        JobSpec.of(changed(smallest(), path, value))
    named = refused.value.field.replace("[", ".").replace("]", "")
    # One of the two may name the section, where the other names what in it is wrong.
    assert named.startswith(field) or field.startswith(named), (named, field)


def test_each_field_of_the_schema_is_read() -> None:
    job = changed(smallest(), "spec.rdzvEndpoint", "etcd:2379")
    job["spec"] |= {
        "checkpoint": {"claimName": "runs"},
        "scheduling": {"queue": "team"},
        "topology": {"nodeLabels": ["rack"]},
        "etcd": {"tls": {"secretName": "a"}, "auth": {"secretName": "b"}},
        "failurePolicy": {
            "rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [3]}}]
        },
    }
    seen: set[str] = set()
    JobSpec.of(job | {"spec": Read("", job["spec"], seen)})
    known = {
        path
        for path, node in structural.nodes(elasticjob().schema["properties"]["spec"])
        if path and not path.endswith("[]") and not _is_open(path)
    }
    assert known - seen == IGNORED


def _is_open(path: str) -> bool:
    return ".template." in path


def test_open_parts_are_the_pod_and_what_is_ignored() -> None:
    spec = elasticjob().schema["properties"]["spec"]
    found = {path for path, node in structural.nodes(spec) if node.get(OPEN)}
    template = ".replicaSpecs.Worker.template"
    assert found == {
        *IGNORED,
        ".etcd.template.metadata",
        ".etcd.template.spec",
        template,
        f"{template}.spec",
        f"{template}.spec.containers[]",
    }
