"""What is read of an array, and who leaves when it is made smaller."""

from __future__ import annotations

from elastic_runtime.cli.slurm.array_commands import ArrayReport, Element, elements_of, surplus

LISTED = ["10 RUNNING n1", "2 RUNNING n0", "3 PENDING", "4 COMPLETING n2"]


def test_elements_are_listed_by_their_index() -> None:
    found = elements_of(LISTED)
    assert [element.index for element in found] == [2, 3, 4, 10]
    assert found[1] == Element(3, "PENDING", "")


def test_what_is_no_element_is_left_out() -> None:
    assert elements_of(["N/A RUNNING n1", "", "3"]) == []


def test_the_highest_indices_leave() -> None:
    found = elements_of(LISTED)
    assert surplus(found, 1) == [10]
    assert surplus(found, 2) == []


def test_it_says_how_many_there_are_and_which() -> None:
    report = ArrayReport("17", 4, tuple(elements_of(LISTED)))
    assert report.as_text().splitlines() == [
        "array 17: 1 completing, 1 pending, 2 running (at most 4 at a time)",
        "  completing: 4 on n2",
        "  pending: 3",
        "  running: 2 on n0, 10 on n1",
    ]
    assert ArrayReport("17", 0, ()).as_text() == "array 17: no element is left"
    assert report.as_dict()["elements"][0] == {"index": 2, "state": "RUNNING", "node": "n0"}
