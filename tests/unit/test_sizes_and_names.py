"""What keeps the code readable: short files and functions, small folders, one class for a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "elastic_runtime"
LONGEST_FILE = 500  # lines
LONGEST_FUNCTION = 60  # lines
MOST_MODULES = 12  # of a folder, beside its __init__


def sources(folder: Path) -> Iterator[Path]:
    """All Python files that somebody has written."""
    for path in sorted(folder.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            yield path


def trees(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """The same, read, by their paths in the project."""
    for path in sources(folder):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


@pytest.mark.parametrize("folder", ["elastic_runtime", "scripts", "tests"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources(ROOT / folder)}
    long = [f"{path}: {length} lines" for path, length in lengths.items() if length > LONGEST_FILE]
    assert not long, "split by subject"


@pytest.mark.parametrize("folder", ["elastic_runtime", "scripts", "tests"])
def test_no_function_is_too_long(folder: str) -> None:
    long = [
        f"{path}: {node.name}"
        for path, tree in trees(ROOT / folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long, "name its parts"


def test_no_folder_of_the_package_has_too_many_modules() -> None:
    modules: defaultdict[Path, int] = defaultdict(int)
    for path in sources(PACKAGE):
        modules[path.parent] += path.name != "__init__.py"
    assert not [folder for folder, count in modules.items() if count > MOST_MODULES]


def test_no_two_public_classes_have_the_same_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees(PACKAGE):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    # What people put in the place of a Trainer, whosever it is.
    assert twice.keys() == {"ElasticMixin", "ElasticTrainer"}, twice
