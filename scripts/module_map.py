#!/usr/bin/env python3
"""Makes docs/modules.md from the first sentence of each module of the package.

    .venv/bin/python scripts/module_map.py

With --check it writes nothing, and ends with 1 if the file is not what it would write.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "elastic_runtime"
PAGE = ROOT / "docs" / "modules.md"

HEAD = """# Every module, in one line each

[architecture.md](architecture.md) says how the parts work together, what the words mean, and where
frequent changes go. *Pure* modules decide, and do no I/O. This page is made from the docstrings by
`scripts/module_map.py`; change them, not it.
"""


def main() -> int:
    """Writes the page, or checks it."""
    page = "".join(_page())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        print("docs/modules.md is out of date: run scripts/module_map.py", file=sys.stderr)
        return 1
    return 0


def _page() -> Iterator[str]:
    yield HEAD
    folders = [PACKAGE, *sorted(path for path in PACKAGE.rglob("*") if path.is_dir())]
    for folder in folders:
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if not modules:
            continue
        name = folder.relative_to(PACKAGE.parent)
        yield f"\n## {name}\n\n{_summary(folder / '__init__.py')}\n"
        yield "\n| file | what it is for |\n|---|---|\n"
        for module in modules:
            yield f"| `{module.name}` | {_summary(module)} |\n"


def _summary(module: Path) -> str:
    """The first paragraph of a module's docstring, as one line of Markdown."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
