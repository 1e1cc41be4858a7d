"""The job's secret: who makes it, and how long it lives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol.records import JOB, ROUND, JobRecord
from elastic_runtime.rendezvous.core.membership_events import REFUSED, Probed
from elastic_runtime.rendezvous.core.notices import Waiting
from tests.unit.rendezvous.node_under_test import LIFE, POLICY, NodeUnderTest, job, node, sealed

OURS = replace(POLICY, secret="drawn by this node")
THEIRS = "drawn by another one"


def test_the_first_node_of_a_job_gives_it_a_secret_and_others_take_it_over() -> None:
    first = NodeUnderTest(policy=OURS).sees(node("a"))
    record = first.written(JobRecord, JOB)
    assert record is not None
    assert record.secret == OURS.secret
    assert NodeUnderTest("b", OURS).sees(job(secret=THEIRS)).state.secret == THEIRS


@pytest.mark.parametrize(("before", "after"), [(THEIRS, THEIRS), ("", OURS.secret)])
def test_a_new_life_of_the_job_keeps_its_secret(before: str, after: str) -> None:
    tested = NodeUnderTest("d", OURS).sees(job(secret=before), sealed(3, "a"), node("d"))
    record = tested.feed(Probed("a", REFUSED)).written(JobRecord, JOB)
    assert record is not None
    assert record.incarnation != LIFE
    assert record.secret == after


def test_a_store_that_forgot_gets_the_secret_back() -> None:
    tested = NodeUnderTest("b", OURS).sees(
        node("a"), node("b"), job(secret=THEIRS), sealed(3, "a", "b")
    )
    tested.sees(wide=False, forgot=True)
    assert tested.state.secret == THEIRS  # in the meantime as well
    restored = tested.written(JobRecord, ROUND)
    assert restored is not None
    assert restored.secret == THEIRS


def test_a_secret_that_an_older_elasticctl_has_dropped_is_written_again() -> None:
    tested = NodeUnderTest("a", OURS).sees(
        job(secret=THEIRS), sealed(3, "a", "b"), node("a"), node("b")
    )
    tested.changes(job(1, 3))  # scaled
    assert tested.state.secret == THEIRS
    mended = tested.written(JobRecord, JOB) or tested.written(JobRecord, ROUND)
    assert mended is not None
    assert (mended.secret, mended.max_nodes) == (THEIRS, 3)


def test_nobody_joins_a_living_job_of_a_version_without_secrets() -> None:
    tested = NodeUnderTest("b", OURS).sees(job(), sealed(3, "a"), node("a"))
    assert not tested.transaction("own")
    assert "run one version on all nodes" in tested.told(Waiting)[0].reason
    assert (
        not NodeUnderTest("b", OURS)
        .sees(job(secret=THEIRS), sealed(3, "a"), node("a"))
        .told(Waiting)
    )


def test_no_secret_is_shown_where_records_are() -> None:
    shown = repr(NodeUnderTest("b", OURS).sees(job(secret=THEIRS)).state)
    assert OURS.secret not in shown
    assert THEIRS not in shown
