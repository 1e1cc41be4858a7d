"""How torch stores tensors, and how it loads them: what leans on its undocumented parts.

A test beside each fails when torch changes it. torch itself is imported only when something here
is called.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


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


def tensor_pickle(dtype: torch.dtype, shape: tuple[int, ...], size: int) -> bytes:
    """The pickle by which ``torch.save`` says how to make a tensor of its raw bytes.

    ``torch.save`` itself would copy the bytes, and takes a quarter of a millisecond. This form,
    with an untyped storage, serves every dtype; ``torch.load`` reads it with ``weights_only``.

    Args:
        dtype: of the tensor.
        shape: of the tensor, which is contiguous.
        size: of its storage, in bytes.
    """
    import torch

    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    storage = _Storage(("storage", torch.UntypedStorage, "0", "cpu", size))
    form: tuple[Any, ...] = (
        storage,
        0,
        shape,
        tuple(reversed(strides)),
        False,
        OrderedDict(),
        dtype,
    )
    out = io.BytesIO()
    _TensorPickler(out, protocol=2).dump(_Rebuilt((torch._utils._rebuild_tensor_v3, form)))
    return out.getvalue()


class _Storage(tuple[Any, ...]):
    """How a pickled tensor speaks of its storage."""

    __slots__ = ()


class _Rebuilt:
    """Becomes, in a pickle, the call of a function."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


class _TensorPickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return tuple(value) if type(value) is _Storage else None


def dtensor_chunk(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where in a whole ``DTensor`` this rank's part is; there is no public way to ask.

    Args:
        tensor: a ``DTensor``.

    Returns:
        Offsets and sizes, by dimension.
    """
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1:
        raise NotImplementedError(f"a DTensor in {len(chunks)} chunks on one rank")
    return tuple(chunks[0].offsets), tuple(chunks[0].sizes)


def takes_state_plainly(optimizer: torch.optim.Optimizer) -> bool:
    """Whether nothing but ``state`` and ``param_groups`` tells what an optimizer remembers.

    Then its state may be put there as it was saved; ``load_state_dict`` would cast it to the type
    of each parameter. There is no public way to see what hooks it has.
    """
    import torch

    plain, kind = torch.optim.Optimizer, type(optimizer)
    hooks = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    return kind.load_state_dict is plain.load_state_dict and not any(
        getattr(optimizer, name, None) for name in hooks
    )


def loads_plainly(module: torch.nn.Module) -> bool:
    """Whether ``load_state_dict`` of a module does nothing but copy each tensor to its place.

    Then it need not be called for tensors that have been read to their places. There is no public
    way to see what hooks a module has. torch's own layers that have a say in loading only care
    for checkpoints of their older versions, and the hooks of FSDP2 for parameters that have been
    replaced by others.
    """
    import torch

    def is_plain(each: torch.nn.Module) -> bool:
        load = type(each)._load_from_state_dict
        hooks = (
            *each._load_state_dict_pre_hooks.values(),
            *each._load_state_dict_post_hooks.values(),
        )
        return load.__module__.startswith("torch.nn.modules.") and all(
            hook.__module__.startswith("torch.distributed.fsdp._fully_shard.") for hook in hooks
        )

    load = torch.nn.Module.load_state_dict
    return type(module).load_state_dict is load and all(map(is_plain, module.modules()))
