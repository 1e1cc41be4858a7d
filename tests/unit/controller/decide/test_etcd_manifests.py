"""The job's own etcd: its pod, with what the job says of it, its Service and its guard."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from elastic_runtime.controller.decide.etcd_manifests import etcd_guard, etcd_pod, etcd_service
from elastic_runtime.controller.decide.manifests import (
    TEMPLATE_ANNOTATION,
    disruption_budget,
    selector,
    worker_pod,
    worker_service,
)
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.unit.controller.jobs import UID, job


def etcd(template: dict[str, Any] | None = None, *, image: str = "etcd:1", **fields: Any) -> Any:
    """The pod of a job with this template for its etcd."""
    said: dict[str, Any] = {} if template is None else {"template": template}
    return etcd_pod(JobSpec.of(job(etcd=said, **fields)), image)


def mark(pod: Any) -> str:
    found = pod["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    assert isinstance(found, str)
    return found


# ---------------------------------------------------------------- without a template


def test_the_pod_and_what_is_around_it_belong_to_the_job_and_have_its_name() -> None:
    spec = JobSpec.of(job())
    for made in (etcd(), etcd_guard(spec), etcd_service(spec)):
        metadata = made["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("digits-etcd", "ns")
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("ElasticJob", UID, True)
    assert etcd()["metadata"]["labels"]["replica-type"] == "etcd"


def test_the_pod_runs_etcd_and_keeps_its_data_in_an_empty_volume() -> None:
    pod = etcd()["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "etcd"
    assert "--advertise-client-urls=http://digits-etcd:2379" in container["command"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/var/lib/etcd"}]
    assert f"--data-dir={container['volumeMounts'][0]['mountPath']}/data" in container["command"]
    assert pod["volumes"] == [{"name": "data", "emptyDir": {}}]
    assert pod["restartPolicy"] == "Always"


def test_the_pod_meets_the_restricted_standard_of_kubernetes() -> None:
    pod = etcd()["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


def test_the_image_of_the_job_goes_before_the_default() -> None:
    assert etcd()["spec"]["containers"][0]["image"] == "etcd:1"
    spec = JobSpec.of(job(etcd={"image": "mine:2"}))
    assert etcd_pod(spec, "etcd:1")["spec"]["containers"][0]["image"] == "mine:2"


@pytest.mark.parametrize(
    "template", [{}, {"spec": {}}, {"spec": None, "metadata": None}, {"spec": {"containers": []}}]
)
def test_a_template_that_says_nothing_changes_nothing(template: dict[str, Any]) -> None:
    assert etcd(template) == etcd()


# ---------------------------------------------------------------- with a template


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tolerations", [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        ("nodeSelector", {"pool": "cpu"}),
        ("affinity", {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
        ("priorityClassName", "high"),
        ("imagePullSecrets", [{"name": "registry"}]),
        ("terminationGracePeriodSeconds", 30),
    ],
)
def test_a_field_of_the_pod_is_taken_over_and_all_others_stay(field: str, value: object) -> None:
    assert etcd({"spec": {field: value}})["spec"] == {**etcd()["spec"], field: value}


(ETCD,) = etcd()["spec"]["containers"]
COMMAND = ["etcd", "--quota-backend-bytes=1000000"]
ASKED = {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi", "cpu": 2}}
MEMORY = ETCD["resources"]["requests"]["memory"]
SIDECAR = {"name": "metrics", "image": "exporter:1", "args": ["-v"]}
CLAIM = {"persistentVolumeClaim": {"claimName": "etcd-data"}}
CERTS = {"name": "certs", "secret": {"secretName": "certs"}}
SAFE = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("field", "said", "made"),
    [
        (
            "containers",
            [{"name": "etcd", "resources": ASKED}],
            [{**ETCD, "resources": {**ASKED, "requests": {"cpu": "1", "memory": MEMORY}}}],
        ),
        ("containers", [{"name": "etcd", "command": COMMAND}], [{**ETCD, "command": COMMAND}]),
        ("containers", [SIDECAR], [ETCD, SIDECAR]),
        ("securityContext", {"runAsUser": 7, "fsGroup": None}, {**SAFE, "runAsUser": 7}),
        ("volumes", [{"name": "data", "emptyDir": None, **CLAIM}], [{"name": "data", **CLAIM}]),
        ("volumes", [CERTS], [{"name": "data", "emptyDir": {}}, CERTS]),
    ],
    ids=["resources", "a command as a whole", "a sidecar", "security", "a claim", "a volume"],
)
def test_a_part_of_the_pod_is_merged_and_all_others_stay(field: str, said: Any, made: Any) -> None:
    assert etcd({"spec": {field: said}})["spec"] == {**etcd()["spec"], field: made}


def test_labels_and_annotations_are_added() -> None:
    pod = etcd({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}})
    plain = etcd()["metadata"]
    assert pod["metadata"]["labels"] == {**plain["labels"], "team": "a"}
    assert pod["metadata"]["annotations"]["note"] == "b"


def test_what_the_user_says_never_replaces_what_the_job_knows_its_pod_by() -> None:
    ours = etcd()["metadata"]
    theirs = dict.fromkeys(ours["labels"], "theirs")
    said = {"labels": theirs, "annotations": {TEMPLATE_ANNOTATION: "theirs"}}
    pod = etcd({"metadata": {**said, "name": "theirs", "namespace": "theirs"}})
    assert pod["metadata"] == ours


def test_making_the_pod_leaves_the_spec_as_it_is() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"containers": [{"name": "etcd", "resources": {"limits": {"cpu": 1}}}]},
    }
    spec = JobSpec.of(job(etcd={"template": template}))
    before = copy.deepcopy(spec.etcd.template)
    assert etcd_pod(spec) == etcd_pod(spec)
    assert spec.etcd.template == before


# ---------------------------------------------------------------- the mark


@pytest.mark.parametrize(
    "pod",
    [
        {"priorityClassName": "high"},
        {"containers": [{"name": "etcd", "imagePullPolicy": "Always"}]},
        {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}]},
    ],
    ids=["a field of the pod", "a field of the container", "a volume"],
)
def test_another_template_has_another_mark(pod: dict[str, Any]) -> None:
    assert mark(etcd({"spec": pod})) != mark(etcd())


def test_another_image_has_another_mark_whoever_chooses_it() -> None:
    assert mark(etcd(image="etcd:2")) != mark(etcd())
    mine = [etcd_pod(JobSpec.of(job(etcd={"image": f"mine:{tag}"}))) for tag in (1, 2)]
    assert mark(mine[0]) != mark(mine[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": 3},
        {"minReplicas": 2},
        {"spares": 1},
        {"suspend": True},
        {"worker": {"template": {"spec": {"containers": [{"name": "main", "image": "img:2"}]}}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_else_changes_in_the_job_leaves_the_mark(fields: dict[str, Any]) -> None:
    assert mark(etcd(**fields)) == mark(etcd())


def test_the_order_in_which_a_template_is_written_leaves_the_mark() -> None:
    fields = {"priorityClassName": "high", "nodeSelector": {"a": "1", "b": "2"}}
    turned = {"nodeSelector": {"b": "2", "a": "1"}, "priorityClassName": "high"}
    assert mark(etcd({"spec": fields})) == mark(etcd({"spec": turned}))


# ---------------------------------------------------------------- around the pod


def test_the_service_leads_to_the_port_of_etcd() -> None:
    service = etcd_service(JobSpec.of(job()))
    assert (service["kind"], service["metadata"]["name"]) == ("Service", "digits-etcd")
    (port,) = service["spec"]["ports"]
    (listens,) = etcd()["spec"]["containers"][0]["ports"]
    assert port["port"] == port["targetPort"] == listens["containerPort"] == 2379
    # It has an address of its own, which stays when the pod behind it is another one.
    assert "clusterIP" not in service["spec"]


SPEC = JobSpec.of(job())


@pytest.mark.parametrize(
    ("selected", "of_workers"),
    [
        (etcd_service(SPEC)["spec"]["selector"], False),
        (etcd_guard(SPEC)["spec"]["selector"]["matchLabels"], False),
        (worker_service(SPEC)["spec"]["selector"], True),
        (disruption_budget(SPEC)["spec"]["selector"]["matchLabels"], True),
        (selector("digits"), True),
    ],
)
def test_what_is_around_pods_selects_either_etcd_or_workers(
    selected: dict[str, str], of_workers: bool
) -> None:
    worker = worker_pod(SPEC, 0, 0, "10.0.0.7:2379", (1, 4))
    for pod, wanted in ((etcd(), not of_workers), (worker, of_workers)):
        assert (selected.items() <= pod["metadata"]["labels"].items()) is wanted


def test_the_guard_keeps_the_one_etcd_unless_it_is_not_ready() -> None:
    guard = etcd_guard(JobSpec.of(job()))
    assert guard["kind"] == "PodDisruptionBudget"
    assert guard["spec"]["minAvailable"] == 1
    assert guard["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
