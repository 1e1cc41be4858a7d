"""One name, one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "elastic_runtime"


def test_no_two_public_classes_have_the_same_name() -> None:
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGE))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    # What people put in the place of a Trainer, whosever it is.
    assert twice.keys() == {"ElasticMixin", "ElasticTrainer"}, twice
