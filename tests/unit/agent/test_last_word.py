"""Who of several nodes in one terminal says how the job has failed."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.launch import has_last_word
from elastic_runtime.protocol.records import Member, OutcomeRecord, RoundRecord

LAST = RoundRecord(
    1,
    "life",
    (
        Member("a1", "a", "10.0.0.1", 1),
        Member("b1", "b", "10.0.0.1", 1),
        Member("c1", "c", "10.0.0.2", 1),
    ),
    0,
    "",
)


@pytest.mark.parametrize(
    ("failed_on", "speak"), [("a", {"a1", "c1"}), ("b", {"b1", "c1"}), ("c", {"a1", "c1"})]
)
def test_one_node_of_each_machine_says_it(failed_on: str, speak: set[str]) -> None:
    outcome = OutcomeRecord("life", False, 1, "it failed", node=failed_on)
    assert {n for n in ("a1", "b1", "c1") if has_last_word(n, LAST, outcome)} == speak


def test_who_ends_for_a_reason_of_its_own_says_so() -> None:
    outcome = OutcomeRecord("life", False, 3, "too few nodes")
    assert has_last_word("b1", LAST, None)
    assert has_last_word("b1", None, outcome)
    assert has_last_word("d1", LAST, outcome), "it was in no round"
