"""Finds ``DataLoader``s whose sampler works for one world only, to give a hint about them.

Nothing of torch is patched, and nothing is imported: a script without a ``DataLoader`` has none.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

# Samplers of torch's that draw or share out samples for one world, and do not go on in another.
_OF_ONE_WORLD = ("RandomSampler", "WeightedRandomSampler", "DistributedSampler")


def sampler_of_one_world() -> str:
    """The sampler of a ``DataLoader`` that shuffles or shares out for one world only.

    It takes as long as a look at each object of the process, some 0.1 s where there are a million.

    Returns:
        The name of its class; "" if there is none, or if a loader has a sampler of ours: then the
        others are for something else, such as evaluation.
    """
    torch_data = sys.modules.get("torch.utils.data")
    loader_class = getattr(torch_data, "DataLoader", None)
    if loader_class is None:
        return ""
    loaders = [one for one in gc.get_objects() if issubclass(type(one), loader_class)]
    found = [(_class_of(one, "batch_sampler"), _class_of(one, "sampler")) for one in loaders]
    if any(kind.__module__.startswith("elastic_runtime.") for pair in found for kind in pair):
        return ""
    names = (sampler.__name__ for _, sampler in found)
    return next((name for name in names if name in _OF_ONE_WORLD), "")


def _class_of(loader: Any, name: str) -> type[Any]:
    return type(getattr(loader, name, None))
