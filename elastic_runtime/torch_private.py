"""Everything that leans on undocumented parts of torch: one room, each with its reason.

A test beside each fails when torch changes it. torch itself is imported only when something here
is called.
"""

from __future__ import annotations

from typing import Any


def cuda_is_lost() -> bool:
    """Whether this process is a fork of one that has touched CUDA, and so can never use it.

    There is no public question for it: ``torch.cuda.is_available()`` would itself touch the
    driver, and ``is_initialized()`` is false in such a fork.
    """
    import torch

    lost = getattr(torch._C, "_cuda_isInBadFork", None)  # absent without CUDA
    return bool(lost and lost())


def numa_cpus(gpu: int, mode: str) -> list[int]:
    """The logical processors that torchrun's ``--numa-binding`` would bind a worker to.

    torch only offers to wrap a command in ``numactl``, or to bind the calling process; a worker
    that is forked needs the processors themselves.

    Args:
        gpu: index of the worker's GPU, which is its local rank.
        mode: ``node``, ``socket``, ``exclusive`` or ``core-complex``.
    """
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    return sorted(binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options))


def dcp_stored_item() -> Any:
    """The class in which DCP's metadata says where an item is: file, offset and length in bytes.

    A checkpoint that is to be readable by plain ``torch.distributed.checkpoint`` must use it, and
    there is no public name for it.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo


def dcp_memory_format() -> Any:
    """The enumeration that DCP pickles in place of ``torch.memory_format``.

    It is part of every tensor's description in DCP's metadata, so a loader that builds nothing
    but known classes has to know it.
    """
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    return _MEM_FORMAT_ENCODING
