"""What is read of pod templates, and how what is wrong in them is named."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.spec.field_reader import InvalidSpec, Section
from elastic_runtime.controller.spec.pod_template import read_etcd_template, read_template

POD = "spec.replicaSpecs.Worker.template.spec"
ETCD = "spec.etcd.template"
GRACE = "terminationGracePeriodSeconds"


def read(pod: dict[str, Any], **template: Any) -> Any:
    """The template of workers with this pod, as it is read."""
    values = {"template": {**template, "spec": pod}}
    return read_template(Section("spec.replicaSpecs.Worker", values))


def main(**fields: Any) -> dict[str, Any]:
    """A pod whose one container has these fields."""
    return {"containers": [{"name": "main", "image": "img:1", **fields}]}


def limited(amount: object, name: str = "memory") -> dict[str, Any]:
    return main(resources={"limits": {name: amount}})


def refusal(pod: dict[str, Any], **template: Any) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as raised:
        read(pod, **template)
    return raised.value


def etcd_refusal(template: dict[str, Any]) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as raised:
        read_etcd_template(Section(ETCD, template))
    return raised.value


def test_a_good_template_is_handed_on_as_it_was_written() -> None:
    pod = {
        **main(
            args=["train.py"],
            env=[{"name": "A", "value": "b"}],
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
            resources={"requests": {"cpu": "500m"}, "limits": {"memory": "8Gi"}},
        ),
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
        "terminationGracePeriodSeconds": 60,
    }
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    assert read(pod, metadata=metadata) == {"metadata": metadata, "spec": pod}


# ---------------------------------------------------------------- amounts


@pytest.mark.parametrize(
    "amount",
    [2, 0, 0.5, "2", "500m", "0.5", ".5", "8Gi", "512Mi", "1e3", "1E3", "1e-3", "2G", "2k", None],
)
@pytest.mark.parametrize("part", ["requests", "limits"])
def test_an_amount_that_kubernetes_knows_is_taken(part: str, amount: object) -> None:
    pod = main(resources={part: {"memory": amount}})
    assert read(pod)["spec"]["containers"][0]["resources"][part] == {"memory": amount}


@pytest.mark.parametrize(
    "amount",
    ["2Gb", "1 Gi", "lots", "", "Gi", "8GiB", "8gi", "2K", "1e", "1.2.3", "1Gi\n", True, [1], {}],
)
def test_what_is_no_amount_is_named_with_its_field(amount: object) -> None:
    refused = refusal(limited(amount))
    assert refused.field == f"{POD}.containers[0].resources.limits.memory"
    assert f"{amount!r} is no amount" in refused.why


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("part", ["requests", "limits"])
def test_an_amount_is_read_wherever_it_stands(kind: str, part: str) -> None:
    second = {"name": "b", "image": "img:2", "resources": {part: {"nvidia.com/gpu": "one"}}}
    pod = {**main(), kind: [*main()["containers"], second]}
    assert refusal(pod).field == f"{POD}.{kind}[1].resources.{part}.nvidia.com/gpu"


EMPTY = [None, {}, {"sizeLimit": "1Gi"}, {"sizeLimit": 1_000_000}]


@pytest.mark.parametrize(
    "pod",
    [
        *(main(resources=resources) for resources in (None, {}, {"limits": None})),
        *({**main(), "volumes": [{"name": "a", "emptyDir": empty}]} for empty in EMPTY),
    ],
)
def test_what_may_be_left_out_and_what_an_empty_volume_may_hold(pod: dict[str, Any]) -> None:
    assert read(pod)["spec"] == pod


# ---------------------------------------------------------------- what is wrong

VOLUMES = [{"name": "a"}, {"name": "b", "emptyDir": {"sizeLimit": "1 Gi"}}]
NO_OBJECT, NO_LIST, NO_TEXT = "is not an object", "is not a list", "is not a text"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (main(resources="much"), "containers[0].resources", NO_OBJECT),
    (main(resources=[{"limits": {}}]), "containers[0].resources", NO_OBJECT),
    (main(resources={"limits": "8Gi"}), "containers[0].resources.limits", NO_OBJECT),
    (main(resources={"requests": ["8Gi"]}), "containers[0].resources.requests", NO_OBJECT),
    ({**main(), "volumes": VOLUMES}, "volumes[1].emptyDir.sizeLimit", "'1 Gi' is no amount"),
    ({**main(), "volumes": [{"name": "a", "emptyDir": "1Gi"}]}, "volumes[0].emptyDir", NO_OBJECT),
    ({**main(), "volumes": ["a"]}, "volumes[0]", NO_OBJECT),
    ({"containers": None}, "containers", "needs a container"),
    ({"containers": []}, "containers", "needs a container"),
    ({"containers": "main"}, "containers", NO_LIST),
    ({"containers": ["main"]}, "containers[0]", NO_OBJECT),
    ({"containers": [{"image": "a"}]}, "containers[0].name", "needs a name"),
    (main(name=""), "containers[0].name", "needs a name"),
    (main(name=3), "containers[0].name", NO_TEXT),
    ({"containers": [{"name": "a"}]}, "containers[0].image", "needs an image"),
    (main(image=None), "containers[0].image", "needs an image"),
    ({"containers": [*main()["containers"], {"name": "b"}]}, "containers[1].image", "an image"),
    (main(args="train.py"), "containers[0].args", NO_LIST),
    (main(command="python"), "containers[0].command", NO_LIST),
    (main(env={"A": "b"}), "containers[0].env", NO_LIST),
    (main(env=["A=b"]), "containers[0].env[0]", NO_OBJECT),
    (main(env=[{"name": 3}]), "containers[0].env[0].name", NO_TEXT),
    (main(volumeMounts=[{"name": "a"}, "b"]), "containers[0].volumeMounts[1]", NO_OBJECT),
    ({**main(), "initContainers": {}}, "initContainers", NO_LIST),
    ({**main(), GRACE: "60"}, GRACE, "is not a whole number"),
    ({**main(), GRACE: -1}, GRACE, "is less than 0"),
]


@pytest.mark.parametrize(("pod", "field", "why"), WRONG)
def test_what_is_wrong_is_named_with_its_field(pod: dict[str, Any], field: str, why: str) -> None:
    refused = refusal(pod)
    assert refused.field == f"{POD}.{field}"
    assert why in refused.why


@pytest.mark.parametrize("name", ["labels", "annotations"])
def test_metadata_that_has_another_type(name: str) -> None:
    refused = refusal(main(), metadata={name: ["a"]})
    assert refused.field == f"spec.replicaSpecs.Worker.template.metadata.{name}"


# ---------------------------------------------------------------- etcd


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": None, "spec": None},
        {"spec": {"containers": [{"name": "etcd", "resources": {"limits": {"memory": "1Gi"}}}]}},
        {"spec": {"containers": [{"name": "metrics", "image": "exporter:1"}, {"name": "etcd"}]}},
        {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]}},
    ],
)
def test_etcd_takes_a_part_of_a_pod(template: dict[str, Any]) -> None:
    # Nothing is returned: a template that is good is one that nothing is raised for.
    read_etcd_template(Section(ETCD, template))
    wrong = {**template, "metadata": {"labels": "a"}}
    assert etcd_refusal(wrong).field == f"{ETCD}.metadata.labels"


@pytest.mark.parametrize("container", [{"name": "ectd"}, {"name": "Etcd", "args": ["-v"]}, {}])
def test_a_container_that_is_neither_etcd_nor_a_whole_one(container: dict[str, Any]) -> None:
    refused = etcd_refusal({"spec": {"containers": [{"name": "etcd"}, container]}})
    assert refused.field == f"{ETCD}.spec.containers[1].name"
    assert "etcd runs in the container 'etcd'" in refused.why


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        (
            {"containers": [{"name": "etcd", "resources": {"limits": {"memory": "2Gb"}}}]},
            "containers[0].resources.limits.memory",
        ),
        ({"containers": [{"name": "etcd", "resources": "much"}]}, "containers[0].resources"),
        ({"containers": [{"name": "etcd", "command": "etcd"}]}, "containers[0].command"),
        (
            {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "lots"}}]},
            "volumes[0].emptyDir.sizeLimit",
        ),
        ({"terminationGracePeriodSeconds": True}, "terminationGracePeriodSeconds"),
    ],
)
def test_what_is_wrong_for_etcd_is_named_with_its_field(pod: dict[str, Any], field: str) -> None:
    assert etcd_refusal({"spec": pod}).field == f"{ETCD}.spec.{field}"
