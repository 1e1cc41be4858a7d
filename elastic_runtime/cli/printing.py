"""How every ``elasticctl`` command prints: a table for people, or JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT_OPTION = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)


def show(form: str, plain: Any, shown: RenderableType) -> None:
    """Prints one of two forms of the same.

    Args:
        form: ``table`` or ``json``.
        plain: printed as JSON.
        shown: printed for people.
    """
    if form == "json":
        click.echo(json.dumps(plain, ensure_ascii=False))
    else:
        console().print(shown)


def console() -> Console:
    """Where people read; into a pipe there is no width to keep to, and nothing may be cut off."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(width=240, highlight=False)
