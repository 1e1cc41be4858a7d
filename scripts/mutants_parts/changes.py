"""Draws small changes of the product, with a seed: the mutants that tests have to notice."""

from __future__ import annotations

import ast
import random
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOGS = ("log", "_log", "_LOG", "logger", "logging", "warnings")
# Keyword arguments that no caller notices as long as nobody makes a mistake.
NO_BEHAVIOUR = ("frozen", "kw_only", "slots", "strict")
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        file: which is changed, relative to the project.
        lines: from the first to the last that is changed; all lines count from 1.
        statement: the first line of the statement around them.
        place: the bytes of the file that are replaced.
        old: their text.
        new: what replaces it.
        at_import: whether it takes effect when the module is imported.
    """

    file: str
    lines: range
    statement: int
    place: slice
    old: str
    new: str
    at_import: bool

    def __str__(self) -> str:
        old, new = (textwrap.shorten(text, 100) for text in (self.old, self.new))
        return f"{self.file}:{self.lines[0]}  {old} -> {new}"

    def changed(self, source: bytes) -> bytes:
        """The file's text with the change."""
        return source[: self.place.start] + self.new.encode() + source[self.place.stop :]


def changes(node: ast.AST) -> Iterator[tuple[Any, ast.AST]]:
    """The nodes to replace at a node, each with what replaces it."""
    match node:
        case ast.Compare(left=left, ops=[first, *others], comparators=right):
            yield node, ast.Compare(left, [SWAPPED[type(first)](), *others], right)
        case ast.BoolOp(op=operator, values=values):
            yield node, ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, operand
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            if not any(map(_is_text_or_list, (left, right))):
                yield node, ast.BinOp(left, _opposite(operator), right)
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() as operator, value=value):
            if not _is_text_or_list(value):
                yield node, ast.AugAssign(target, _opposite(operator), value)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(number) | float(number)):
            yield node, ast.Constant(number + 1)
            yield node, ast.Constant(number - 1)
        case ast.Return(value=ast.expr() as value):
            if ast.unparse(value) != "None":
                yield node, ast.Return(ast.Constant(None))
        case ast.Continue() | ast.Break():
            yield node, ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
        ):
            yield node, ast.Pass()
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, ast.Constant(True)
            yield test, ast.Constant(False)
        case ast.arguments(posonlyargs=first, args=args, defaults=defaults):
            # Of the positional ones only the first can lose its default: those behind it need it.
            positional = [*first, *args][len(first) + len(args) - len(defaults) :]
            one = zip(positional, defaults[:1], strict=False)
            for arg, default in (*one, *zip(node.kwonlyargs, node.kw_defaults, strict=True)):
                if default:
                    old = ast.copy_location(ast.arg(arg.arg, arg.annotation), arg)
                    old.end_lineno, old.end_col_offset = default.end_lineno, default.end_col_offset
                    yield old, arg


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of a file.

    Args:
        file: its path, relative to the project.
        source: its text.

    Raises:
        SyntaxError: it is no Python.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def below(node: ast.AST, statement: int, inside: bool) -> Iterator[Mutant]:
        if _is_left_out(node):
            return
        if isinstance(node, ast.stmt):
            statement = node.lineno
        for old, new in changes(node):
            place = slice(
                starts[old.lineno - 1] + old.col_offset,
                starts[old.end_lineno - 1] + old.end_col_offset,
            )
            text = ast.unparse(new)
            if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Name):
                text = f"({text})"
            lines = range(old.lineno, old.end_lineno + 1)
            yield Mutant(file, lines, statement, place, source[place].decode(), text, not inside)
        for name, value in ast.iter_fields(node):
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                    yield from below(child, statement, inside or (later and name == "body"))

    yield from below(ast.parse(source), 1, inside=False)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.pattern():  # their places are not exact, or no expressions
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg=name):
            return name in NO_BEHAVIOUR
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGS
    return False


def _is_text_or_list(node: ast.AST) -> bool:
    """Which every test that reaches a minus finds."""
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _opposite(operator: ast.operator) -> ast.operator:
    return ast.Sub() if isinstance(operator, ast.Add) else ast.Add()


def draw(sources: Mapping[str, bytes], count: int, seed: int) -> list[Mutant]:
    """Mutants of different lines, one of each of as many equal stretches of the product, whose
    files are ordered by room: a room has as many as its share of the lines that can be changed.

    Args:
        sources: the text of each file.
        count: how many, or fewer where there are not so many lines.
        seed: the same one draws the same from the same files.
    """
    by_line: defaultdict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for file in sorted(sources, key=lambda file: (Path(file).parent, file)):
        for mutant in mutants(file, sources[file]):
            by_line[file, mutant.lines[0]].append(mutant)
    dice, lines = random.Random(seed), list(by_line.values())
    bounds = [len(lines) * n // count for n in range(count + 1)]
    stretches = [lines[a:b] for a, b in pairwise(bounds) if a < b]
    return [dice.choice(dice.choice(stretch)) for stretch in stretches]
