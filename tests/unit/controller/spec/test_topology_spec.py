"""Which labels of nodes a job, or the controller's settings, may name."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.spec.job_spec import InvalidSpec, JobSpec
from elastic_runtime.controller.spec.topology_spec import MOST_LEVELS, are_node_labels
from tests.unit.controller.jobs import job

LABELS = ["topology.kubernetes.io/zone", "example.com/block", "rack"]


@pytest.mark.parametrize(
    ("topology", "read"),
    [
        (None, None),
        ({}, None),
        ({"nodeLabels": None}, None),
        ({"nodeLabels": []}, ()),
        ({"nodeLabels": LABELS}, tuple(LABELS)),
    ],
)
def test_a_job_names_labels_or_none_or_leaves_it_to_the_controller(
    topology: Any, read: tuple[str, ...] | None
) -> None:
    assert JobSpec.of(job(topology=topology)).node_labels == read


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ("rack", "spec.topology.nodeLabels"),
        (["rack"] * (MOST_LEVELS + 1), "spec.topology.nodeLabels"),
        (["zone", 7], "spec.topology.nodeLabels[1]"),
        (["zone", ""], "spec.topology.nodeLabels[1]"),
        (["a/b/c"], "spec.topology.nodeLabels[0]"),
        (["Example.com/rack"], "spec.topology.nodeLabels[0]"),
        (["rack-"], "spec.topology.nodeLabels[0]"),
        (["r" * 64], "spec.topology.nodeLabels[0]"),
    ],
)
def test_what_is_no_key_of_a_label_is_named(labels: Any, field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        JobSpec.of(job(topology={"nodeLabels": labels}))
    assert refused.value.field == field


def test_the_setting_follows_the_same_rules() -> None:
    assert are_node_labels(()) and are_node_labels(LABELS)
    assert not are_node_labels(["rack"] * (MOST_LEVELS + 1))
    assert not are_node_labels(["rack", ""])
