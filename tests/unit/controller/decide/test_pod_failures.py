"""What the end of a pod means."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.decide.job_types import FAILED, SUCCEEDED, PodView
from elastic_runtime.controller.decide.pod_failures import Meaning, end_of
from elastic_runtime.controller.spec.job_spec import JobSpec
from tests.unit.controller.jobs import job

DONE, REPLACE, LEAVE = Meaning.DONE, Meaning.REPLACE, Meaning.LEAVE
COUNT, FAIL = Meaning.COUNT, Meaning.FAIL


def ended(code: int | None, reason: str = "", phase: str = "") -> PodView:
    phase = phase or (SUCCEEDED if code == 0 else FAILED)
    return PodView("digits-worker-0", 0, "u", phase=phase, exit_code=code, reason=reason)


def meaning(policy: str, pod: PodView, *rules: dict[str, Any]) -> Meaning:
    made = job(worker={"restartPolicy": policy}, failurePolicy={"rules": list(rules)})
    return end_of(JobSpec.of(made), pod).meaning


@pytest.mark.parametrize(
    ("code", "on_failure", "exit_code", "never"),
    [
        (0, DONE, DONE, DONE),
        (1, COUNT, FAIL, FAIL),
        (2, FAIL, FAIL, FAIL),
        (3, REPLACE, REPLACE, FAIL),
        (4, REPLACE, REPLACE, FAIL),
        (5, REPLACE, REPLACE, FAIL),
        (77, COUNT, FAIL, FAIL),
        (127, COUNT, FAIL, FAIL),
        (130, REPLACE, REPLACE, FAIL),
        (134, COUNT, REPLACE, FAIL),
        (137, REPLACE, REPLACE, FAIL),
        (138, REPLACE, REPLACE, FAIL),
        (143, REPLACE, REPLACE, FAIL),
        (255, COUNT, REPLACE, FAIL),
        (None, COUNT, FAIL, FAIL),  # an init container, say
    ],
)
def test_exit_codes(
    code: int | None, on_failure: Meaning, exit_code: Meaning, never: Meaning
) -> None:
    assert meaning("OnFailure", ended(code)) is on_failure
    assert meaning("Always", ended(code)) is on_failure
    assert meaning("ExitCode", ended(code)) is exit_code
    assert meaning("Never", ended(code)) is never


@pytest.mark.parametrize(
    "reason",
    [
        *("Evicted", "Preempting", "PreemptionByScheduler", "NodeLost", "NodeShutdown"),
        *("Terminated", "Shutdown", "UnexpectedAdmissionError", "DeletionByTaintManager"),
        "OutOfcpu",
    ],
)
@pytest.mark.parametrize("code", [None, 0, 1, 2, 143])
def test_what_the_cluster_took_away_is_replaced(reason: str, code: int | None) -> None:
    assert meaning("OnFailure", ended(code, reason, FAILED)) is REPLACE
    assert meaning("ExitCode", ended(code, reason, FAILED)) is REPLACE


@pytest.mark.parametrize(
    ("code", "reason", "wanted"),
    [(137, "OOMKilled", REPLACE), (1, "OOMKilled", COUNT), (128, "StartError", FAIL)],
)
def test_other_reasons_leave_it_to_the_exit_code_but_who_cannot_begin(
    code: int, reason: str, wanted: Meaning
) -> None:
    assert meaning("OnFailure", ended(code, reason)) is wanted


def test_the_first_rule_that_fits_decides() -> None:
    rules = (
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Restart", "onReasons": ["OOMKilled"]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1, 42]}},
    )
    assert meaning("OnFailure", ended(42), *rules) is LEAVE
    assert meaning("OnFailure", ended(9, "OOMKilled"), *rules) is REPLACE
    assert meaning("OnFailure", ended(137), *rules) is FAIL
    assert meaning("OnFailure", ended(1), *rules) is COUNT
    assert meaning("OnFailure", ended(0), *rules) is DONE
    assert meaning("Never", ended(42), *rules) is LEAVE


def test_a_rule_with_code_and_reason_wants_both() -> None:
    code = {"operator": "In", "values": [137]}
    rule = {"action": "FailJob", "onExitCodes": code, "onReasons": ["OOMKilled"]}
    assert meaning("OnFailure", ended(137, "OOMKilled"), rule) is FAIL
    assert meaning("OnFailure", ended(137), rule) is REPLACE
    assert meaning("OnFailure", ended(None, "OOMKilled"), rule) is COUNT


def test_the_message_says_which_pod_and_why() -> None:
    text = end_of(JobSpec.of(job()), ended(4, "Error")).message
    assert text.startswith("digits-worker-0 ended: exit code 4, the rendezvous store")


def test_how_long_a_worker_ran() -> None:
    assert PodView("a", 0, "a", started_at=10.0, finished_at=25.0).lifetime == 15.0
    assert PodView("a", 0, "a", finished_at=25.0).lifetime == 0.0
    assert PodView("a", 0, "a", started_at=30.0, finished_at=25.0).lifetime == 0.0
