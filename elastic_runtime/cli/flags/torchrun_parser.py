"""torchrun's parser, made from torch's source, and torch itself only where it is needed.

A command line is read before torch is: a mistake in it is reported at once, and the fork server,
which needs the settings, can import torch at the same time as the agent.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import os
import sys
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPP_LOG = "TORCH_CPP_LOG_LEVEL"


def torchrun_parser() -> argparse.ArgumentParser:
    """Makes torchrun's parser, without the ``PET_*`` variables as defaults."""
    with _without_pet():
        if "torch" in sys.modules:
            return _imported()
        try:
            return _from_source()
        except Exception:  # another torch than those that are known: its parser needs more of it
            import_torch()
            return _imported()


def import_torch() -> None:
    """Imports torch so that its C++ side stays calm in this process.

    It writes two lines for each second that a store does not answer, and its own stack where
    another program listens at the store's port; an agent rides that out and reports it once. torch
    looks at the variable only now; the workers are not to inherit it.
    """
    asked_for = _CPP_LOG in os.environ
    os.environ.setdefault(_CPP_LOG, "FATAL")
    gc.disable()  # a fifth faster: what is imported stays
    importlib.import_module("torch")
    gc.enable()
    if not asked_for:
        del os.environ[_CPP_LOG]


def _imported() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    return parser


def _from_source() -> argparse.ArgumentParser:
    """Runs the one function that makes the parser, and what it uses of torch's, taken from files.

    Importing it would import all of torch, which takes more than a second.
    """
    spec = find_spec("torch")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("torch")
    torch = Path(spec.submodule_search_locations[0])
    names: dict[str, Any] = {**vars(argparse), "Enum": Enum, "os": os}
    _define(torch / "distributed" / "argparse_util.py", ("env", "check_env"), names)
    _define(torch / "numa" / "binding.py", ("AffinityMode",), names)
    names["_AffinityMode"] = names["AffinityMode"]
    names["_Action"] = argparse.Action
    wanted = ("get_args_parser", "_PrintCompletionAction")  # the latter since torch 2.14
    _define(torch / "distributed" / "run.py", wanted, names)
    parser: argparse.ArgumentParser = names["get_args_parser"]()
    return parser


def _define(file: Path, wanted: tuple[str, ...], names: dict[str, Any]) -> None:
    """Puts functions and classes of a source file among the names, without running the rest."""
    tree = ast.parse(file.read_bytes())
    chosen: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in wanted
    ]
    exec(compile(ast.Module(chosen, []), str(file), "exec", dont_inherit=True), names)


@contextmanager
def _without_pet() -> Iterator[None]:
    """Hides ``PET_*``: torch's parser reads them while it is built, and trips over bad ones."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PET_")}
    try:
        yield
    finally:
        os.environ.update(hidden)
