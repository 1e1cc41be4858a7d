"""What the workers are to run, and whether it is there before anything is started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.config import COMMAND, MODULE, SCRIPT, Entry
from elastic_runtime.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Mapping

    from elastic_runtime.cli.flags.flag_parser import CommandLine
    from elastic_runtime.cli.flags.setting_sources import Settings


def read_entry(line: CommandLine, settings: Settings, environ: Mapping[str, str]) -> Entry:
    """Says what to run.

    Raises:
        UsageError: ``-m`` and ``--no-python`` together.
    """
    python = environ.get("PYTHON_EXEC", "")  # torchrun's variable
    if settings["run_path"]:
        return Entry(SCRIPT, line.script, line.args)
    if settings["no_python"]:
        if settings["module"]:
            raise UsageError(
                f"{settings.of('module')} and {settings.of('no_python')} exclude each other: a "
                "module needs Python"
            )
        return Entry(COMMAND, line.script, line.args)
    return Entry(MODULE if settings["module"] else SCRIPT, line.script, line.args, python)


def check_entry(entry: Entry) -> None:
    """Makes sure that there is something to run, without running any of it.

    Raises:
        UsageError: the script, module or program is missing or cannot be read.
    """
    if entry.python and shutil.which(entry.python) is None:
        raise UsageError(
            f"PYTHON_EXEC={entry.python!r} is no program that can be run: name the Python that "
            "workers are to use, or unset it"
        )
    if entry.kind == SCRIPT:
        _check_script(entry.target)
    elif entry.kind == COMMAND:
        if shutil.which(entry.target) is None:
            raise UsageError(
                f"there is no program {entry.target!r} that can be run: give its path, or a name "
                "found through PATH"
            )
    elif entry.kind == MODULE and not entry.python:
        # Another interpreter has modules of its own, which only it can look for.
        _check_module(entry.target)


def _check_script(target: str) -> None:
    path = Path(target)
    if path.is_dir():
        raise UsageError(
            f"the script {target!r} is a directory: name a file in it, or a package with -m"
        )
    if not path.exists():
        raise UsageError(f"there is no script {target!r}{_where(path)}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {target!r} cannot be read: check its permissions")


def _where(path: Path) -> str:
    """Where was looked, and what is there under a similar name."""
    folder = path.parent.absolute()
    if not folder.is_dir():
        return f": there is no directory {str(folder)!r}"
    try:
        names = [item.name for item in folder.iterdir() if item.suffix == ".py"]
    except OSError:
        names = []
    # They end alike, and many are in one folder.
    return f" in {str(folder)!r}{did_you_mean(path.name, names, cutoff=0.75)}"


def _check_module(name: str) -> None:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"{name!r} is no name of a module: write package.module, without .py")
    spec = _find(parts)
    if spec is not None and spec.submodule_search_locations is not None:
        if _find([*parts, "__main__"]) is None:
            raise UsageError(
                f"{name!r} is a package without a __main__: name one of its modules, as in "
                f"-m {name}.train"
            )
    elif spec is None and name.endswith(".py"):
        raise UsageError(f"there is no module {name!r}: leave -m out for a file, or .py")
    elif spec is None:
        raise UsageError(
            f"there is no module {name!r} on the path of {sys.executable} or in {os.getcwd()!r}"
        )


def _find(parts: list[str]) -> importlib.machinery.ModuleSpec | None:
    """Finds a module as ``python -m`` would, but without importing its packages."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for depth in range(len(parts)):
        if path is None:  # what was found so far is no package
            return None
        spec = _find_in(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        path = list(locations) if locations is not None else None
    return spec


def _find_in(name: str, path: list[str]) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
