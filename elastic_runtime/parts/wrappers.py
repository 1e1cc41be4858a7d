"""What modules and optimizers are inside of what others wrap around them."""

from __future__ import annotations

import torch


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside ``DDP``, ``DataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(
            module, (torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.DataParallel)
        ):
            module = module.module
        elif "_orig_mod" in module._modules:  # a compiled module, without importing the compiler
            module = module.get_submodule("_orig_mod")
        else:
            return module


def unwrapped_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside of one that only passes its steps on, such as accelerate's.

    Such a wrapper was never set up as an optimizer itself, and takes no hooks.
    """
    while "_optimizer_step_pre_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer):
            break
        optimizer = inner
    return optimizer


def bare(value: object) -> object:
    """A module or an optimizer without its wrappers; anything else as it is."""
    if isinstance(value, torch.nn.Module):
        return unwrapped(value)
    if isinstance(value, torch.optim.Optimizer):
        return unwrapped_optimizer(value)
    return value
