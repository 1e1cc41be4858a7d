"""A misspelt field of a job is found, wherever it is."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.cli.kube.job_fields import check_fields
from elastic_runtime.controller.spec.field_reader import InvalidSpec
from tests.unit.cli.kube.job_objects import a_job


def test_a_job_has_only_fields_that_there_are() -> None:
    check_fields(a_job())
    check_fields({"metadata": {"labels": {"anything": "x"}}, "spec": None})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sepc": {}}, r"sepc: there is no such field; did you mean 'spec'\?"),
        ({"spec": {"minReplica": 1}}, r"spec\.minReplica: .*'minReplicas'"),
        ({"spec": {"replicaSpecs": {"Master": {}}}}, r"spec\.replicaSpecs\.Master: "),
        ({"spec": {"failurePolicy": {"rules": [{}, {"x": 1}]}}}, r"rules\[1\]\.x: "),
        ({"metadata": {"label": {}}}, r"metadata\.label: .*'labels'"),
    ],
)
def test_another_one_is_named_with_its_place(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        check_fields(wrong)
