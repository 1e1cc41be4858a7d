"""What the fork server imports before it forks, and whether it may fork at all.

Only installed packages are imported ahead. The user's own modules are not: they may be edited
between two starts, and what they do when they are imported is the script's business.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import signal
import site
import sys
import sysconfig
import threading
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.limits import TRIAL_FORK_TIMEOUT
from elastic_runtime.system import torch_private
from elastic_runtime.worker import torch_patches, worker_main

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Every training script needs these; without torch._dynamo the first optimizer of each worker
# takes about a second.
ALWAYS = ("torch", "torch.distributed", "torch._dynamo", "torch.utils.data")

# What a script that uses this package needs of it; looked up, not imported, by its short name.
_OURS = (
    "elastic_runtime.worker.context",
    "elastic_runtime.checkpoint.checkpointer",
    "elastic_runtime.data.loader",
    "elastic_runtime.data.sampler",
    "elastic_runtime.training.run_loop",
    "elastic_runtime.training.run",
    "elastic_runtime.training.state",
)

# Packages of ours for trainers: they are imported as a whole.
_ADAPTERS = (
    "elastic_runtime.accelerate",
    "elastic_runtime.lightning",
    "elastic_runtime.torchtitan",
    "elastic_runtime.transformers",
)

# What a program imports by a name on its command line, beside what stands at its top.
_ALONG = {"torchtitan.trainer": "elastic_runtime.torchtitan.config_registry"}

# They start threads or take devices when they are imported, and do not survive a fork.
NEVER = frozenset({"grpc", "horovod", "jax", "mpi4py", "ray", "tensorflow"})

_MOST_FILES = 500


@dataclass(frozen=True)
class Preloaded:
    """What came of preloading.

    Attributes:
        modules: imported.
        skipped: ``name: reason`` of those that could not be imported.
        why_cold: why this process must not be forked into workers; "" if it may.
    """

    modules: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    why_cold: str = ""


def preload(script: str, root: str, extra: Sequence[str]) -> Preloaded:
    """Imports what the script will import, and tries out whether a fork of this process works.

    Args:
        script: path of the script's file; "" if there is none.
        root: the directory that will come first on its path.
        extra: modules that the user has named, installed or not.
    """
    found = imports_of(Path(script), Path(root)) if script else {}
    found |= {along: set() for name, along in _ALONG.items() if name in found}
    wanted: dict[str, set[str]] = {name: set() for name in ALWAYS} | found
    modules: list[str] = []
    skipped: list[str] = []
    # The collector would look through it all again and again, which takes a fifth of the time.
    gc.disable()
    for name in dict.fromkeys([*wanted, *extra]):
        why = _import(name, wanted.get(name, ()))
        if why:
            skipped.append(f"{name}: {why}")
        else:
            modules.append(name)
    gc.enable()
    if "torch.distributed" in modules:
        torch_patches.patch_torch()
        torch_patches.watch_steps()
        torch_patches.watch_samplers()
    # What is loaded by now stays: the collector of a worker need not touch, and so copy, it.
    gc.collect()
    gc.freeze()
    why_cold = _unfit(root) or _canary()
    return Preloaded(tuple(modules), tuple(skipped), why_cold)


def _import(name: str, members: Iterable[str]) -> str:
    try:
        module = importlib.import_module(name)
        # A package such as transformers imports its parts when somebody takes something of them.
        for member in members:
            getattr(module, member, None)
    except BaseException as error:  # whatever a module does here, it will do again in the worker
        return f"{type(error).__name__}: {error}"
    return ""


def source_of(module: str, root: Path) -> Path | None:
    """The file that ``python -m module`` would run, found without importing its packages.

    Args:
        module: a dotted name.
        root: the directory that comes first on the path.
    """
    spec = _found(module, root)
    if spec is not None and spec.submodule_search_locations is not None:  # a package
        spec = PathFinder.find_spec(f"{module}.__main__", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin else None


def _found(module: str, root: Path) -> ModuleSpec | None:
    search: Sequence[str] | None = [str(root), *sys.path]
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), search) if search is not None else None
        if spec is None:
            return None
        search = spec.submodule_search_locations
    return spec


def imports_of(script: Path, root: Path) -> dict[str, set[str]]:
    """The installed modules that a script imports at its top, itself or by way of its own modules.

    Args:
        script: the script.
        root: the directory in which its own modules lie.

    Returns:
        Names to import, in the order in which they are found, and what the script takes of each.
    """
    found: dict[str, set[str]] = {}
    seen: set[Path] = set()
    waiting = [script]
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        for name, members in _top_imports(file, root):
            own = _own_files(name, members, root)
            if own:
                waiting.extend(own)
            elif name.partition(".")[0] == __name__.partition(".")[0]:
                ours = (*_OURS, *(name for adapter in _ADAPTERS if name.startswith(adapter)))
                for module in ours:
                    found.setdefault(module, set())
            elif is_installed(name):
                found.setdefault(name, set()).update(members)
                for part in (f"{name}.{member}" for member in members):
                    if _found(part, root):
                        found.setdefault(part, set())
    return {name: taken for name, taken in found.items() if name.partition(".")[0] not in NEVER}


def _top_imports(file: Path, root: Path) -> Iterable[tuple[str, tuple[str, ...]]]:
    """``(module, names taken from it)`` of each import statement at the top level of a file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the worker will report it
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, ()
        elif isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            if statement.level:
                package = file.parents[statement.level - 1]
                if not package.is_relative_to(root):
                    continue
                inside = package.relative_to(root).parts
                module = ".".join((*inside, module) if module else inside)
            yield module, tuple(alias.name for alias in statement.names)


def _own_files(name: str, members: Iterable[str], root: Path) -> list[Path]:
    """The files below ``root`` that an import of these names would run."""
    files: list[Path] = []
    base = root
    for part in filter(None, name.split(".")):
        base = base / part
        files += filter(Path.is_file, (base / "__init__.py", base.with_suffix(".py")))
    if files:
        files += filter(Path.is_file, (base / f"{member}.py" for member in members))
    return files


def is_installed(name: str) -> bool:
    """Whether a module belongs to the standard library or an installed distribution."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.origin:
        return False
    return any(Path(spec.origin).is_relative_to(place) for place in _places())


def _places() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]


def _unfit(root: str) -> str:
    """Why this process, as it is now, must not be forked into workers; "" if it may."""
    threads = [thread.name for thread in threading.enumerate() if thread.name != "MainThread"]
    if threads:
        return f"a preloaded module has started threads ({', '.join(threads)})"
    shadowed = sorted(shadows(Path(root), sys.modules))
    if shadowed:
        return (
            f"{os.path.join(root, shadowed[0])} has the name of a module that is loaded already;"
            " a worker would not find it"
        )
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch cannot be imported"
    if torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA, which does not survive a fork"
    return ""


def shadows(root: Path, loaded: Iterable[str]) -> set[str]:
    """Modules beside the script that a fresh interpreter would find before those loaded by now."""
    try:
        entries = list(root.iterdir())
    except OSError:
        return set()
    tops = {name.partition(".")[0] for name in loaded} - {"__main__", __name__.partition(".")[0]}
    modules = {entry.name for entry in entries if entry.suffix == ".py" and entry.stem in tops}
    packages = {
        entry.name for entry in entries if entry.name in tops and (entry / "__init__.py").is_file()
    }
    return modules | packages


def _canary() -> str:
    """Forks a child that computes on two threads; says why the next fork should not be a worker."""
    server = os.getpid()
    child = os.fork()
    if child == 0:
        worker_main.die_with(server)
        # The default action of the alarm ends also a child that hangs in native code.
        signal.alarm(TRIAL_FORK_TIMEOUT)
        os._exit(0 if _computes() else 1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    if code == -signal.SIGALRM:
        return f"a parallel operation in a forked process did not end within {TRIAL_FORK_TIMEOUT} s"
    return f"a parallel operation in a forked process failed (exit code {code})"


def _computes() -> bool:
    try:
        import torch

        torch.set_num_threads(2)
        ones = torch.ones(512, 512)
        good = float((ones @ ones).sum()) == 512.0**3 and float((ones + ones).sum()) == 2 * 512.0**2
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            square = numpy.ones((256, 256))
            good = good and float((square @ square).sum()) == 256.0**3
        return good and not torch_private.cuda_is_lost()
    except BaseException:
        return False
