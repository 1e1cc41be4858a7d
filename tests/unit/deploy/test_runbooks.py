"""docs/runbooks.md has a section for each condition and each reason, and for nothing else."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.controller.decide import conditions, pod_failures
from elastic_runtime.controller.decide.status_builder import CONDITIONS
from tests.unit.deploy.files import ROOT
from tests.unit.deploy.rendering import charted

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = (ROOT / "docs" / "runbooks.md").read_text()
TITLES = re.findall(r"^### (.+)$", TEXT, re.MULTILINE)
CONTROLLER = ROOT / "elastic_runtime" / "controller"
DECIDE = [ast.parse(file.read_text()) for file in sorted((CONTROLLER / "decide").rglob("*.py"))]
# Those that know of problems which a decision cannot see; the others speak of Kubernetes' reasons.
ROUND_IT = [
    ast.parse((CONTROLLER / f"{name}.py").read_text())
    for name in ("cluster_state", "executor", "reconcile")
]
SOURCES = [*DECIDE, *ROUND_IT]
# Which argument of a call is a reason.
CALLS = {"set_condition": 2, "add_event": 0, "Problem": 0, "PodEnd": 1, "_end_job": 2, "forget": 1}
# What stands for a reason that is found elsewhere: passed on, or one of Kubernetes' own.
PASSED_ON = {
    *("reason", "kind", "problem.reason", "end.reason", "stuck[0].reason", "pod.reason"),
    *("pod.waiting_reason", "etcd.waiting_reason"),
}
OF_KUBERNETES = {*conditions._NO_CONTAINER, *pod_failures._NO_START}


def constants() -> dict[str, str]:
    """All texts that have a name in a module of the controller."""
    found = {}
    for node in (node for tree in SOURCES for node in tree.body if isinstance(node, ast.Assign)):
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    found[name.id] = str(value.value)
    return found


CONSTANTS = constants()


def texts(node: ast.expr) -> Iterator[str]:
    """What an expression may be.

    Raises:
        AssertionError: it is of a kind that is not known here: add it, or name the reason.
    """
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from texts(node.body)
            yield from texts(node.orelse)
        case ast.BoolOp():
            for value in node.values:
                yield from texts(value)
        case ast.Name(id=name) if name in CONSTANTS:
            yield CONSTANTS[name]
        case _:
            said = ast.unparse(node)
            assert said in PASSED_ON, f"which reasons may {said!r} be?"


def places() -> Iterator[ast.expr]:
    """All expressions that are reasons."""
    for node in (node for tree in SOURCES for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in CALLS:
                yield node.args[CALLS[name]]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
            yield node.value
    for node in (node for tree in DECIDE for node in ast.walk(tree)):
        # A reason with its words.
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            if re.fullmatch(r"tuple\[str, str\]( \| None)?", ast.unparse(node.returns)):
                yield from pairs(node)


def pairs(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The first of each pair that a function returns."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield node.value.elts[0]


REASONS = OF_KUBERNETES | {text for place in places() for text in texts(place) if text}


def test_reasons_are_found() -> None:
    assert {"InvalidSpec", "TemplateRefused", "BackOff", "TooFewPods", "UsageError"} <= REASONS
    assert {"DeadlineExceeded", "AtMinimum", "Rolling", "QuotaExceeded", "Ended"} <= REASONS
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", reason) for reason in REASONS), REASONS


@pytest.mark.parametrize("name", sorted({*REASONS, *CONDITIONS}))
def test_each_has_a_section(name: str) -> None:
    assert name in TITLES


def test_no_section_is_of_something_that_nobody_says() -> None:
    assert len(TITLES) == len(set(TITLES))
    said = {title for title in TITLES if " " not in title}
    assert said <= {*REASONS, *CONDITIONS}


def test_each_reason_that_the_table_names_has_a_section() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    [table] = re.findall(r"^\| reason \| what to do \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    for row in table.splitlines():
        for name in re.findall(r"`(\w+)`", row.split("|")[1]):
            assert name in TITLES


def test_each_alert_leads_to_a_section() -> None:
    where = "docs/runbooks.md"
    values = {"rules": {"enabled": True, "runbooks": where}}
    [made] = [each for each in charted(metrics=values) if each["kind"] == "PrometheusRule"]
    sections = {title.lower().replace(" ", "-") for title in TITLES}
    for rule in made["spec"]["groups"][0]["rules"]:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == where
        assert anchor in sections, rule["alert"]
