"""The definition of ElasticJob: what an API server lets in, and what it refuses by which field."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest

from elastic_runtime.cli.kube.job_fields import FIELDS
from tests.unit.deploy import structural
from tests.unit.deploy.admission import RULES, compiled, elasticjob
from tests.unit.deploy.files import DEPLOY, SAMPLES, Object, jobs, objects

WORKER = "spec.replicaSpecs.Worker"
FILES = sorted(SAMPLES.rglob("*.yaml"))
ALL_JOBS = [pytest.param(job, id=job["metadata"]["name"]) for file in FILES for job in jobs(file)]


def smallest() -> Object:
    """A job of which nothing can be left out."""
    pod = {"spec": {"containers": [{"name": "elasticjob-worker", "image": "train"}]}}
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "train"},
        "spec": {"replicaSpecs": {"Worker": {"template": pod}}},
    }


def changed(job: Object, path: str, value: Any) -> Object:
    """The job with one field set, or removed if the value is ``...``."""
    job = deepcopy(job)
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    at: Any = job
    for part in way:
        at = at.setdefault(part, {}) if isinstance(part, str) else at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return job


def fields(job: Object, old: Object | None = None) -> list[str]:
    """The fields by which the job is refused."""
    return [refusal.field for refusal in elasticjob().refusals(job, old)]


# ---------------------------------------------------------------- the definition itself


def test_the_definition_is_one() -> None:
    [crd] = objects(DEPLOY / "crd.yaml")
    kubernetes_validate.validate(crd, "1.34", strict=True)
    names = crd["spec"]["names"]
    assert crd["metadata"]["name"] == f"{names['plural']}.{crd['spec']['group']}"


def test_submit_knows_the_same_fields() -> None:
    def names(schema: Any) -> Any:
        """The fields of a schema, as in ``FIELDS``."""
        if inner := names(schema["items"]) if "items" in schema else None:
            return [inner]
        within = schema.get("properties", {})
        return {name: names(one) for name, one in within.items()} or None

    [crd] = objects(DEPLOY / "crd.yaml")
    [version] = crd["spec"]["versions"]
    defined = names(version["schema"]["openAPIV3Schema"])
    # What Kubernetes itself defines, and what users do not write.
    template = FIELDS["spec"]["replicaSpecs"]["Worker"]["template"]
    defined["spec"]["replicaSpecs"]["Worker"]["template"] = template
    defined["spec"]["etcd"]["template"] = template
    defined |= {"metadata": FIELDS["metadata"], "status": FIELDS["status"]}
    assert defined == FIELDS


def test_its_schema_is_structural() -> None:
    assert structural.faults(elasticjob().schema) == []


def test_each_rule_can_be_read() -> None:
    rules = [
        rule for _, node in structural.nodes(elasticjob().schema) for rule in node.get(RULES, [])
    ]
    for rule in rules:
        compiled(rule["rule"])
    assert len(rules) > 5


def test_every_field_of_the_spec_is_explained() -> None:
    mute = [
        path
        for path, node in structural.nodes(elasticjob().schema["properties"]["spec"])
        if not node.get("description") and path.count(".") <= 1
    ]
    assert mute == []


def test_what_get_shows() -> None:
    [crd] = objects(DEPLOY / "crd.yaml")
    [version] = crd["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["State", "World", "Wanted", "Step", "Goodput", "Restarts", "Age"]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert wide == ["Queue", "Ready", "Round", "Last Fault"]
    known = {path for path, _ in structural.nodes(elasticjob().schema)}
    scale = version["subresources"]["scale"]
    assert {*(c["jsonPath"] for c in columns), *scale.values()} <= known | {
        ".metadata.creationTimestamp"
    }
    assert version["subresources"]["status"] == {}


# ---------------------------------------------------------------- what is let in


def test_the_smallest_job() -> None:
    assert fields(smallest()) == []
    assert elasticjob().completed(smallest())["spec"] == {
        "spares": 0,
        "suspend": False,
        "cleanPodPolicy": "Running",
        "backoffLimit": 0,
        "rollout": "OnRecreate",
        "replicaSpecs": {
            "Worker": {
                "restartPolicy": "OnFailure",
                "template": smallest()["spec"]["replicaSpecs"]["Worker"]["template"],
            }
        },
    }


@pytest.mark.parametrize("job", ALL_JOBS)
def test_a_sample(job: Object) -> None:
    assert elasticjob().refusals(job) == []
    template = job["spec"]["replicaSpecs"]["Worker"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
    kubernetes_validate.validate(pod, "1.34", strict=True)
    assert pod["spec"]["automountServiceAccountToken"] is False  # workers need no token


OLD_ETCD = {"rdzvEndpoint": "etcd-service:2379", "rdzvBackend": "etcd-v2"}
TAKEN: dict[str, list[Any]] = {
    "spec": [{**smallest()["spec"], **OLD_ETCD}],
    "spec.rdzvEndpoint": [
        *("etcd-service:2379", "etcd://h1:2379,h2:2379/team"),
        *("etcds://user@h:2379", "etcd://[fe80::1]:2379"),
    ],
    "spec.minReplicas": [1],
    "spec.maxReplicas": [1],
    "spec.rdzvId": ["team-7.run_3"],
    "spec.nprocPerNode": [8, "8", "auto"],
    "spec.suspend": [True],
    "spec.maxRestarts": [0],
    "spec.spares": [2],
    "spec.cleanPodPolicy": ["None"],
    "spec.ttlSecondsAfterFinished": [0],
    "spec.activeDeadlineSeconds": [2**40],
    "spec.backoffLimit": [3],
    "spec.etcd": [{"image": "etcd:v3.5"}, {"template": {"spec": {"priorityClassName": "high"}}}],
    "spec.rollout": ["Rolling"],
    "spec.topology": [{}],
    "spec.topology.nodeLabels": [[], ["topology.kubernetes.io/zone", "Rack_7", "a.b/c.d"]],
    "spec.managedBy": ["kueue.x-k8s.io/multikueue"],
    "spec.scheduling": [
        {"queue": "team", "priorityClass": "base", "surplusPriorityClass": "low"},
        {"queue": "team", "gang": "volcano"},
        {"queue": "team", "priorityClass": "base", "gang": "coscheduling"},
        {"gang": "native"},
    ],
    "spec.priorityClassName": ["high"],
    "spec.schedulingPolicy": [{"minAvailable": 2}],
    "spec.checkpoint": [{"claimName": "runs", "mountPath": "/data/runs"}],
    "spec.failurePolicy.rules": [[{"onReasons": ["Evicted"], "action": "Restart"}]],
    f"{WORKER}.restartPolicy": ["Always"],
    f"{WORKER}.template.metadata": [{"labels": {"team": "vision"}}],
    "status": [{"conditions": [{"type": "Running", "status": "True"}]}],
}
GOOD = [(path, value) for path, values in TAKEN.items() for value in values]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_good_input(path: str, value: Any) -> None:
    assert elasticjob().refusals(changed(smallest(), path, value)) == []


def test_each_field_of_the_spec_is_tried() -> None:
    of_samples = {f"spec.{name}" for param in ALL_JOBS for name in param.values[0]["spec"]}
    tried = of_samples | {path for path, *_ in (*GOOD, *BAD)}
    names = elasticjob().schema["properties"]["spec"]["properties"]
    assert [name for name in names if f"spec.{name}" not in tried] == []


# ---------------------------------------------------------------- what is refused

RULE, CONDITION = "spec.failurePolicy.rules.0", "status.conditions.0.status"
EVICTED = {"onReasons": ["Evicted"]}
ON_256 = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [256]}}
# What is refused by the field that is set (or left out: ``...``), and by another one.
REFUSED: dict[str, list[Any]] = {
    "spec": [...],
    "spec.replicaSpecs": [...],
    "spec.replicaSpecs.Master": [{}],
    f"{WORKER}.template": [...],
    f"{WORKER}.template.spec.containers": [..., []],
    f"{WORKER}.template.spec.containers.0.image": [...],
    f"{WORKER}.restartPolicy": ["Sometimes"],
    f"{WORKER}.replicas": [0, "2", 2**31],
    f"{WORKER}.replica": [2],
    "metadata.name": ["Digits", "a" * 51, "7-of-nine"],
    "spec.minReplica": [1],
    "spec.minReplicas": [0],
    "spec.maxReplicas": [0],
    "spec.rdzvEndpoint": [
        *("", "host 2379", "c10d://host:29400"),
        *("etcd://me:secret@host:2379", "me:secret@host:2379"),
    ],
    "spec.rdzvBackend": ["zookeeper", "etcd"],  # the latter: of the controller's own etcd
    "spec.rdzvId": ["a/b"],
    "spec.nprocPerNode": [0, "many", 1.5],
    "spec.spares": [-1],
    "spec.maxRestarts": [-1],
    "spec.suspend": ["yes"],
    "spec.rollout": ["Sometimes"],
    "spec.topology.nodeLabels": ["rack", ["rack"] * 9],
    "spec.managedBy": ["somebody", f"a/{'b' * 62}"],
    "spec.priorityClassName": ["High one"],
    "spec.scheduling": [
        {"priorityClass": "base"},
        {"queue": "q", "gang": "kai", "priorityClass": "b"},
    ],
    "spec.cleanPodPolicy": ["Some"],
    "spec.ttlSecondsAfterFinished": [-1],
    "spec.activeDeadlineSeconds": [0],
    "spec.backoffLimit": [-1],
    "spec.checkpoint": [
        {},
        {"claimName": "a", "url": "s3://b"},
        {"url": "s3://b", "mountPath": "/b"},
    ],
    "spec.etcd": [{"tls": {"secretName": "tls"}}],
    "spec.failurePolicy.rules": [[]],
}
BAD: list[tuple[str, Any, str]] = [
    *((path, value, path) for path, values in REFUSED.items() for value in values),
    ("spec.replicaSpecs", {}, WORKER),
    (f"{WORKER}.template", {}, f"{WORKER}.template.spec"),
    ("spec.topology.nodeLabels", ["zone", "a/b/c"], "spec.topology.nodeLabels.1"),
    ("spec.topology.nodeLabels", ["r" * 64], "spec.topology.nodeLabels.0"),
    ("spec.topology.nodeLabels", [""], "spec.topology.nodeLabels.0"),
    ("spec.scheduling", {"queue": "Team A"}, "spec.scheduling.queue"),
    ("spec.scheduling", {"queue": "a" * 64}, "spec.scheduling.queue"),
    ("spec.scheduling", {"gang": "all"}, "spec.scheduling.gang"),
    ("spec.scheduling", {"que": "team"}, "spec.scheduling.que"),
    ("spec.checkpoint", {"url": "b"}, "spec.checkpoint.url"),
    ("spec.checkpoint", {"url": "s3://me:secret@b"}, "spec.checkpoint.url"),
    ("spec.checkpoint", {"claimName": "a", "mountPath": "b"}, "spec.checkpoint.mountPath"),
    ("spec.etcd", {"auth": {}}, "spec.etcd.auth.secretName"),
    ("spec.etcd", {"template": {"nodeSelector": {}}}, "spec.etcd.template.nodeSelector"),
    ("spec.failurePolicy", {}, "spec.failurePolicy.rules"),
    ("spec.failurePolicy.rules", [{"action": "FailJob"}], RULE),
    ("spec.failurePolicy.rules", [{**EVICTED, "action": "Explode"}], f"{RULE}.action"),
    ("spec.failurePolicy.rules", [ON_256], f"{RULE}.onExitCodes.values.0"),
    ("status", {"conditions": [{"type": "Running", "status": "yes"}]}, CONDITION),
]


@pytest.mark.parametrize(("path", "value", "field"), BAD)
def test_bad_input_is_refused_by_its_field(path: str, value: Any, field: str) -> None:
    assert set(fields(changed(smallest(), path, value))) == {field}


@pytest.mark.parametrize(
    ("least", "desired", "most", "wrong"),
    [
        (1, 1, 1, []),
        (1, 2, 4, []),
        (None, 2, 4, []),
        (1, 2, None, []),
        (4, 3, 2, ["spec.minReplicas", f"{WORKER}.replicas", f"{WORKER}.replicas"]),
        (3, 2, 4, [f"{WORKER}.replicas"]),
        (1, 5, 4, [f"{WORKER}.replicas"]),
        (3, None, 4, []),  # as many as the least
        (None, 5, 4, [f"{WORKER}.replicas"]),
        (3, 2, None, [f"{WORKER}.replicas"]),
    ],
)
def test_the_bounds(
    least: int | None, desired: int | None, most: int | None, wrong: list[str]
) -> None:
    job = smallest()
    places = ("spec.minReplicas", f"{WORKER}.replicas", "spec.maxReplicas")
    for path, value in zip(places, (least, desired, most), strict=True):
        job = job if value is None else changed(job, path, value)
    assert fields(job) == wrong


# ---------------------------------------------------------------- what may change


@pytest.mark.parametrize(
    ("path", "value", "wrong"),
    [
        (f"{WORKER}.replicas", 2, []),
        ("spec.maxReplicas", 8, []),
        ("spec.suspend", True, []),
        (f"{WORKER}.template.spec.containers.0.image", "train:2", []),
        ("spec.rdzvEndpoint", "other:2379", ["spec.rdzvEndpoint"]),
        ("spec.rdzvEndpoint", ..., ["spec.rdzvEndpoint"]),
        ("spec.rdzvId", "other", ["spec.rdzvId"]),
    ],
)
def test_a_change(path: str, value: Any, wrong: list[str]) -> None:
    job = changed(changed(smallest(), "spec.rdzvEndpoint", "here:2379"), "spec.rdzvId", "run")
    assert fields(job, old=job) == []
    assert fields(changed(job, path, value), old=job) == wrong
