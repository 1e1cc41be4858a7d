"""What an ElasticJob asks for, and how a wrong field is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from elastic_runtime.cli.kube.build_job import checked_job
from elastic_runtime.controller.spec.job_spec import Checkpoint, Etcd, InvalidSpec, JobSpec, Rule
from elastic_runtime.controller.spec.scheduling_spec import Scheduling
from elastic_runtime.controller.spec.topology_spec import MOST_LEVELS, are_node_labels
from tests.unit.controller.jobs import CLASSIC, FULL, UID, container, job, template_of
from tests.unit.controller.simulated import begun


def test_a_classic_manifest_is_read_unchanged() -> None:
    spec = JobSpec.of(CLASSIC)
    assert (spec.name, spec.namespace, spec.uid) == ("imagenet", "elastic-job", UID)
    assert spec.endpoint == "etcd-service:2379"
    assert (spec.minimum, spec.maximum, spec.replicas) == (1, 2, 2)
    assert spec.restart_policy == "ExitCode"
    assert list(spec.images.values()) == ["torchelastic/examples:0.2.0"]


def test_what_is_left_out_has_a_default() -> None:
    spec = JobSpec.of(job(replicas=None, minReplicas=None, maxReplicas=None))
    assert (spec.minimum, spec.maximum, spec.replicas) == (1, 1, 1)
    assert (spec.clean, spec.restart_policy, spec.backoff_limit) == ("Running", "OnFailure", 0)
    assert (spec.ttl, spec.deadline, spec.max_restarts, spec.checkpoint) == (None,) * 4
    assert (spec.spares, spec.suspend, spec.endpoint, spec.rules) == (0, False, "", ())


@pytest.mark.parametrize(
    ("replicas", "low", "high", "read"),
    [
        (None, 2, 4, (2, 4, 2)),
        (3, None, None, (3, 3, 3)),
        (3, None, 5, (3, 5, 3)),
        (3, 1, None, (1, 3, 3)),
    ],
)
def test_sizes_that_are_left_out(
    replicas: int | None, low: int | None, high: int | None, read: tuple[int, int, int]
) -> None:
    spec = JobSpec.of(job(replicas=replicas, minReplicas=low, maxReplicas=high))
    assert (spec.minimum, spec.maximum, spec.replicas) == read


def test_every_field_is_read() -> None:
    spec = JobSpec.of({**FULL, "spec": {**FULL["spec"], "suspend": True}})
    assert (spec.nproc, spec.spares, spec.max_restarts, spec.suspend) == ("auto", 1, 1, True)
    assert (spec.clean, spec.ttl, spec.deadline, spec.backoff_limit) == ("All", 10, 100, 1)
    assert (spec.endpoint, spec.restart_policy) == ("etcd:2379", "Always")
    assert spec.rules == (Rule("Count", frozenset({3}), reasons=frozenset({"OOMKilled"})),)
    assert spec.checkpoint == Checkpoint("disk", "", "/ckpt")
    assert spec.etcd == Etcd("e:1", "s", "t")
    assert spec.secrets == {"spec.etcd.tls.secretName": "s", "spec.etcd.auth.secretName": "t"}
    assert [spec.run_id(0), spec.run_id(1)] == ["mine", "mine-1"]
    assert [JobSpec.of(job()).run_id(n) for n in (0, 2)] == [f"{UID}-0", f"{UID}-2"]


def test_the_worker_container_is_the_one_with_the_name_or_the_first() -> None:
    made = job()
    containers = template_of(made)["spec"]["containers"]
    containers.append({"name": "elasticjob-worker", "image": "img:2"})
    assert JobSpec.of(made).container == 1
    assert list(JobSpec.of(made).images.values()) == ["img:2", "img:1"]
    containers[1]["name"] = "sidecar"
    assert JobSpec.of(made).container == 0


def rule(**fields: Any) -> dict[str, Any]:
    """A job's policy of one rule."""
    return {"failurePolicy": {"rules": [fields]}}


RULE, TEXTS = "spec.failurePolicy.rules[0]", {"operator": "In", "values": ["1"]}
RELATIVE = {"claimName": "a", "mountPath": "b"}
WORKER, QUEUE, LABELS = "spec.replicaSpecs.Worker", "spec.scheduling", "spec.topology.nodeLabels"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"minReplicas": 3, "maxReplicas": 2}, "spec.minReplicas", "above maxReplicas 2"),
    ({"replicas": 5}, f"{WORKER}.replicas", "not between minReplicas 1 and maxReplicas 4"),
    ({"replicas": 1, "minReplicas": 2}, f"{WORKER}.replicas", "not between"),
    ({"maxReplicas": 10**6}, "spec.maxReplicas", "more than 10000"),
    ({"maxReplicas": "4"}, "spec.maxReplicas", "not a whole number"),
    ({"maxReplicas": True}, "spec.maxReplicas", "not a whole number"),
    ({"worker": {"restartPolicy": "Sometimes"}}, f"{WORKER}.restartPolicy", "Always, OnFailure"),
    ({"worker": {"template": None}}, f"{WORKER}.template", "missing"),
    ({"replicaSpecs": {"Master": {}}}, "spec.replicaSpecs.Master", "Worker"),
    ({"rdzvEndpoint": "<your_etcd_endpoint>:<port>"}, "spec.rdzvEndpoint", "endpoint"),
    ({"rdzvEndpoint": "c10d://a:1"}, "spec.rdzvEndpoint", "etcd"),
    ({"rdzvEndpoint": "etcd://u:secret@a:1"}, "spec.rdzvEndpoint", "password"),
    ({"rdzvBackend": "zookeeper", "rdzvEndpoint": "a:1"}, "spec.rdzvBackend", "etcd-v2"),
    ({"rdzvBackend": "etcd-v2"}, "spec.rdzvBackend", "rdzvEndpoint"),
    ({"etcd": {"tls": {"secretName": "s"}}}, "spec.etcd.tls", "rdzvEndpoint"),
    ({"etcd": {"auth": {"secretName": "s"}}}, "spec.etcd.auth", "rdzvEndpoint"),
    ({"nprocPerNode": "many"}, "spec.nprocPerNode", "neither a number"),
    ({"nprocPerNode": 0}, "spec.nprocPerNode", "neither a number"),
    ({"suspend": "yes"}, "spec.suspend", "neither true nor false"),
    ({"checkpoint": {"claimName": "a", "url": "s3://b"}}, "spec.checkpoint", "either"),
    ({"checkpoint": {"mountPath": "/a"}}, "spec.checkpoint", "either"),
    ({"checkpoint": RELATIVE}, "spec.checkpoint.mountPath", "absolute path"),
    (rule(action="Shrug", onReasons=["A"]), f"{RULE}.action", "FailJob"),
    (rule(action="Count"), RULE, "onExitCodes or onReasons"),
    (rule(action="Count", onExitCodes=TEXTS), f"{RULE}.onExitCodes.values", "whole numbers"),
    ({"scheduling": {"queue": "Team"}}, f"{QUEUE}.queue", "'Team' is not the name of an object"),
    ({"scheduling": {"queue": ""}}, f"{QUEUE}.queue", "it is empty"),
    ({"scheduling": {"queue": 7}}, f"{QUEUE}.queue", "7 is not a text"),
    ({"scheduling": {"gang": "all"}}, f"{QUEUE}.gang", "coscheduling, volcano, kai, native"),
    ({"scheduling": {"priorityClass": "a"}}, f"{QUEUE}.priorityClass", "name one in queue"),
    (
        {"scheduling": {"queue": "q", "gang": "kai", "surplusPriorityClass": "a"}},
        f"{QUEUE}.surplusPriorityClass",
        "kai knows none: use spec.priorityClassName",
    ),
    ({"scheduling": []}, QUEUE, "[] is not an object"),
    ({"topology": {"nodeLabels": "rack"}}, LABELS, "not a list"),
    ({"topology": {"nodeLabels": ["rack"] * (MOST_LEVELS + 1)}}, LABELS, "at most 8 are possible"),
    ({"topology": {"nodeLabels": ["zone", 7]}}, f"{LABELS}[1]", "no key of a label"),
    ({"topology": {"nodeLabels": ["a/b/c"]}}, f"{LABELS}[0]", "no key of a label"),
    ({"topology": {"nodeLabels": ["Example.com/rack"]}}, f"{LABELS}[0]", "no key of a label"),
    ({"topology": {"nodeLabels": ["rack-"]}}, f"{LABELS}[0]", "no key of a label"),
]


@pytest.mark.parametrize(("fields", "field", "why"), WRONG, ids=[case[1] for case in WRONG])
def test_what_is_wrong_is_named_with_its_field(
    fields: dict[str, Any], field: str, why: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        JobSpec.of(job(**fields))
    assert raised.value.field == field
    assert why in raised.value.why
    assert str(raised.value) == f"{field}: {raised.value.why}"
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "a" * 51, "a.b", "1a", "A"])
def test_a_name_that_pods_cannot_have(name: str) -> None:
    made = job()
    made["metadata"]["name"] = name
    with pytest.raises(InvalidSpec, match=r"metadata\.name"):
        JobSpec.of(made)


def test_null_is_as_if_left_out() -> None:
    made = container(job(), args=None, env=None)
    made["spec"]["etcd"] = None
    assert JobSpec.of(made) == JobSpec.of(copy.deepcopy(made))
    assert JobSpec.of(made).etcd == Etcd()


# ---------------------------------------------------------------- queues and gangs


@pytest.mark.parametrize(
    ("asked", "kueue"),
    [
        (None, False),
        ({"gang": "coscheduling"}, False),
        ({"queue": "team"}, True),
        ({"queue": "team", "gang": "coscheduling"}, True),
        ({"queue": "team", "gang": "native"}, True),
        ({"queue": "team", "gang": "volcano"}, False),
        ({"queue": "team", "gang": "kai"}, False),
    ],
)
def test_a_queue_is_kueues_unless_the_scheduler_has_its_own(asked: Any, kueue: bool) -> None:
    read = JobSpec.of(job(scheduling=asked)).scheduling
    assert read == Scheduling(**(asked or {}))
    assert read.kueue is kueue


@pytest.mark.parametrize(
    ("label", "asked", "is_told"),
    [
        ("team", None, True),
        ("team", {"queue": "other"}, True),
        ("team", {"queue": "team"}, False),
        ("", None, False),
    ],
)
def test_a_queue_in_a_label_of_the_job_has_no_effect_and_that_is_told(
    label: str, asked: Any, is_told: bool
) -> None:
    made = job(scheduling=asked)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": label} if label else {}
    cluster = begun(made)
    assert cluster.reasons("Warning") == (["QueueIgnored"] if is_told else [])
    if is_told:
        with pytest.raises(InvalidSpec, match=r"say it in spec\.scheduling\.queue"):
            checked_job(made)
    else:
        checked_job(made)


# ---------------------------------------------------------------- labels of nodes

KEYS = ["topology.kubernetes.io/zone", "example.com/block", "rack"]


@pytest.mark.parametrize(
    ("topology", "read"),
    [
        (None, None),
        ({}, None),
        ({"nodeLabels": None}, None),
        ({"nodeLabels": []}, ()),
        ({"nodeLabels": KEYS}, tuple(KEYS)),
    ],
)
def test_a_job_names_labels_or_none_or_leaves_it_to_the_controller(
    topology: Any, read: tuple[str, ...] | None
) -> None:
    assert JobSpec.of(job(topology=topology)).node_labels == read


def test_the_setting_follows_the_same_rules() -> None:
    assert are_node_labels(()) and are_node_labels(KEYS)
    assert not are_node_labels(["rack"] * (MOST_LEVELS + 1))
    assert not are_node_labels(["rack", ""])
