"""The examples of docs/data.md, as they stand there, alone and with two ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.examples.test_docs import DOCS, ROOT, examples, run_example

if TYPE_CHECKING:
    from pathlib import Path

ELASTIC_RUN = ("-m", "elastic_runtime", "--nproc-per-node=2")

# What each prints; with a group in it, that is the same for any number of ranks.
ALONE = {
    "orders.py": r"differ by at most (\d\d); 3\d\d of 1000 are rare",
    "augment.py": r"the same everywhere: True",
}
ANY_WORLD = {
    "train.py": r"loss (0\.\d+) after 33 steps",
    "shards.py": r"weight (-?\d\.\d+) after 34 steps",
}


def test_all_examples_are_run() -> None:
    assert examples("data.md").keys() == ALONE.keys() | ANY_WORLD.keys()


@pytest.mark.parametrize("name", ALONE)
def test_example(name: str, tmp_path: Path) -> None:
    text = run_example("data.md", name, tmp_path)
    assert re.search(ALONE[name], text), text


@pytest.mark.parametrize("name", ANY_WORLD)
def test_example_in_any_world(name: str, tmp_path: Path) -> None:
    found = set()
    # The first example is through when it is run again.
    again = [("alone", ())] if name == "train.py" else []
    for folder, launcher in (("alone", ()), *again, ("together", ELASTIC_RUN)):
        text = run_example("data.md", name, tmp_path / folder, *launcher)
        results = re.findall(ANY_WORLD[name], text)
        assert results, text
        found.update(results)
    assert len(found) == 1, found
    assert list((tmp_path / "alone").glob("runs/**/*33*")) or not again, "its last step is saved"


def test_symptoms_are_messages_of_the_code() -> None:
    table = (DOCS / "data.md").read_text().partition("## Troubleshooting")[2]
    symptoms = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    source = "".join(file.read_text() for file in (ROOT / "elastic_runtime/data").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a message over several lines
    assert len(symptoms) > 5
    assert [symptom for symptom in symptoms if symptom not in source] == []
