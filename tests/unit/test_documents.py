"""The documents hang together: every link leads somewhere, and the index names every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_runtime.events.event import known_events

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def links(page: Path) -> list[tuple[str, str]]:
    """File and anchor of all links within the project."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)", text)
    return [(file, anchor) for file, anchor in found if "://" not in file]


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: its titles, as they are turned into anchors."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def test_the_index_names_each_page() -> None:
    named = {file for file, _ in links(DOCS / "index.md")}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= named


@pytest.mark.parametrize(
    ("page", "begins", "folder"),
    [
        ("CONTRIBUTING.md", "# Contributing", ROOT),
        ("docs/architecture.md", "## Where a change goes", ROOT / "elastic_runtime"),
    ],
)
def test_each_file_that_a_way_leads_through_is_there(page: str, begins: str, folder: Path) -> None:
    text = (ROOT / page).read_text()
    assert begins in text
    part = re.split(r"^## Threads", text[text.index(begins) :], flags=re.MULTILINE)[0]
    files = re.findall(r"`([\w./-]+/[\w./-]+)`", part)
    assert len(files) > 5
    assert [
        file for file in files if not (folder / file).exists() and not (ROOT / file).exists()
    ] == []


def test_each_constant_that_the_table_of_changes_names_is_there() -> None:
    rows = re.findall(r"^\| .+ \| (.+) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    named = [pair for row in rows for pair in re.findall(r"`(\w+)` in `([\w/]+\.py)`", row)]
    assert len(named) > 3
    for name, file in named:
        assert re.search(rf"^(def )?{name}\b", (ROOT / "elastic_runtime" / file).read_text(), re.M)


def defined(page: str) -> list[str]:
    """The words that the first column of a page's table of words defines."""
    _, _, table = (DOCS / page).read_text().partition("| word | meaning |\n|---|---|\n")
    rows = re.match(r"(\|.*\n)+", table)
    assert rows
    return [word for row in rows[0].splitlines() for word in row.split(" | ")[0][2:].split(", ")]


def test_each_word_is_defined_once() -> None:
    words = defined("glossary.md") + defined("architecture.md")
    assert len(words) > 40
    assert sorted(word for word in set(words) if words.count(word) > 1) == []


def walks() -> list[tuple[str, int, list[str]]]:
    """Each walk through the code: its title, how many files it says it has, and its steps."""
    _, _, part = (DOCS / "architecture.md").read_text().partition("## Walks")
    titles = r"^\*\*(From .+?)\*\*\s\((\d+) files"
    _, *found = re.split(titles, part.partition("\n## ")[0], flags=re.MULTILINE)
    return [
        (title, int(count), re.findall(r"^\d+\. `[\w/]+\.py`", text, re.MULTILINE))
        for title, count, text in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


def test_each_walk_counts_its_files() -> None:
    assert walks()
    for title, count, steps in walks():
        assert [int(step.partition(".")[0]) for step in steps] == list(range(1, count + 1)), title
        assert len({step.partition(" ")[2] for step in steps}) == count, title


def test_each_module_that_a_docstring_names_is_there() -> None:
    package = ROOT / "elastic_runtime"
    folders = "|".join(path.parent.name for path in package.glob("*/__init__.py"))
    named = re.compile(rf"``((?:{folders})(?:\.\w+)+)``")
    known = {event.name for event in known_events().values()}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in package.rglob("*.py")
        for name in named.findall(path.read_text())
        if not (name in known or name.endswith(".py"))
        and not _is_module(package.joinpath(*name.split(".")))
    ]
    assert missing == []


def _is_module(path: Path) -> bool:
    """Whether a path is that of a folder, of a module, or of something in a module."""
    return path.is_dir() or any(p.with_suffix(".py").exists() for p in (path, path.parent))
