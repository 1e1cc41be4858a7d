"""Where torchtitan finds configs for ``--module elastic_runtime.torchtitan``.

``--config`` names one of torchtitan's own (``llama3_8b``), or a function of the user's by its path
(``my_package.configs.my_8b``). Each is made elastic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
        return getattr(importlib.import_module(path), function, None)
    return next((getattr(one, name) for one in _registries(name) if hasattr(one, name)), None)


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
    own = vars(registry).items()
    return [n for n, v in own if callable(v) and getattr(v, "__module__", "") == registry.__name__]
