"""Counts lines of code: neither blank, nor comment, nor docstring, by room.

    scripts/lines.py                    the package, the tests and the scripts, one line a room
    scripts/lines.py tests/unit/agent   what is named: folders or files

A room is a folder that holds Python files. Generated files are not counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("elastic_runtime", "tests", "scripts")
GENERATED = "_pb2.py"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(source: str) -> int:
    """How many lines of a module hold code.

    Args:
        source: the text of the module.

    Raises:
        SyntaxError: it is no Python.
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    lines -= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    return len(lines)


def by_room(place: Path) -> tuple[Counter[Path], Counter[Path]]:
    """The lines of code, and the files, of each folder below a folder (or of a file's own)."""
    lines: Counter[Path] = Counter()
    files: Counter[Path] = Counter()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        if not path.name.endswith(GENERATED):
            lines[path.parent] += code_lines(path.read_text())
            files[path.parent] += 1
    return lines, files


def main() -> None:
    """Prints a line for each room, and the sum of each tree."""
    for place in map(Path, sys.argv[1:] or (str(ROOT / tree) for tree in TREES)):
        if not place.exists():
            sys.exit(f"lines.py: there is no {place}")
        lines, files = by_room(place)
        for room in sorted(lines):
            name = room.resolve().relative_to(ROOT) if room.resolve().is_relative_to(ROOT) else room
            print(f"{lines[room]:7,}  {files[room]:4} files  {name}")
        print(f"{sum(lines.values()):7,}  {sum(files.values()):4} files  {place.name}, in all\n")


if __name__ == "__main__":
    main()
