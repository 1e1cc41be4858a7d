"""Where torchtitan finds configs for ``--module elastic_runtime.torchtitan``.

``--config`` names one of torchtitan's own (``llama3_8b``), or a function of the user's by its path
(``my_package.configs.my_8b``). Each is made elastic.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import UsageError
from elastic_runtime.torchtitan.supported import check_torchtitan

check_torchtitan()

from torchtitan.experiments import _supported_experiments  # noqa: E402
from torchtitan.models import _supported_models  # noqa: E402

from elastic_runtime.torchtitan.elastic_config import elastic as _elastic  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def __getattr__(name: str) -> Callable[[], Any]:
    """The function of that name, whose config is made elastic."""
    if not name.startswith("_") and (found := _find(name)) is not None:
        return lambda: _elastic(found())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What torchtitan shows people who ask for something that there is not."""
    return sorted({name for registry in _registries("") for name in _configs(registry)})


def _find(name: str) -> Any:
    path, _, function = name.rpartition(".")
    if path:
        return _own(path, function)
    return next((getattr(one, name) for one in _registries(name) if hasattr(one, name)), None)


def _own(path: str, function: str) -> Any:
    """A function of the user's, by its path.

    Raises:
        UsageError: there is no such module, or no such function in it.
    """
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # a module that it needs
        raise UsageError(
            f"--config {path}.{function}: there is no module {path}; give the path of a function "
            "that makes a config, as Python would import it"
        ) from None
    if not callable(found := getattr(module, function, None)):
        there = ", ".join(_configs(module)) or "none"
        raise UsageError(
            f"--config {path}.{function}: {path} has no function {function}; those that make "
            f"something without arguments are: {there}"
        )
    return found


def _registries(name: str) -> Iterator[ModuleType]:
    """torchtitan's, those first whose model a name begins with."""
    known = [("models", one) for one in sorted(_supported_models)]
    known += [("experiments", one) for one in sorted(_supported_experiments)]
    for folder, model in sorted(known, key=lambda one: not name.startswith(one[1])):
        try:
            yield importlib.import_module(f"torchtitan.{folder}.{model}.config_registry")
        except ImportError:  # of packages that only this model needs
            continue


def _configs(registry: ModuleType) -> list[str]:
    """The functions of a registry that make a config of nothing."""
    own = vars(registry).items()
    made = [(n, v) for n, v in own if inspect.isfunction(v) and v.__module__ == registry.__name__]
    return [n for n, v in made if not n.startswith("_") and not inspect.signature(v).parameters]
