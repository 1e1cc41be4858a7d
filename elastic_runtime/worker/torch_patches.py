"""What is changed in torch in a worker: where it listens, lost peers, groups that are gone.

A warm worker gets it from the process that it is forked from. One that starts cold may never import
torch, or fail before that; so there it is done as soon as torch is there.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


def patch_torch() -> None:
    """Limits where torch listens, lets it notice lost peers, and accept that groups are gone.

    torch's distributed package is imported, and belongs to this process alone.
    """
    from elastic_runtime.system import tcp_keepalive, torch_private, torch_tcp_store
    from elastic_runtime.worker.context import spares_groups

    torch_tcp_store.host_where_reached()
    torch_private.tend_groups(tcp_keepalive.tended)
    torch_private.spare_groups(spares_groups)


def watch_steps() -> None:
    """Lets this process notice steps that this package knows nothing of; torch is imported."""
    from elastic_runtime.worker.plain_steps import watch_plain_steps

    watch_plain_steps()


def watch_samplers() -> None:
    """Lets this process notice orders that belong to one world; torch's data package is there."""
    from elastic_runtime.worker import one_world_samplers

    one_world_samplers.watch_samplers()


def patch_when_imported() -> None:
    """Does all that as soon as this process has imported what of torch it is about."""
    sys.meta_path[:0] = [
        _Finder("torch.distributed", patch_torch),
        _Finder("torch.optim", watch_steps),
        _Finder("torch.utils.data", watch_samplers),
    ]


class _Finder:
    """Finds one module where it is, and does something after the module was executed."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module, self._then = module, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
