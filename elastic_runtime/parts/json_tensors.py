"""State dicts as JSON and a list of tensors, and back: what crosses the network is never pickled.

Numbers, strings, None and booleans stand for themselves; everything else becomes a JSON list that
begins with the name of its kind, and a tensor becomes its number in the list of tensors. Types
are taken exactly: a subclass could hold more than what would come back.
"""

from __future__ import annotations

import copy
import ctypes
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What json.loads gives back.
Structure = Any

_ATOMS = frozenset({type(None), bool, int, float, str})
_IMMUTABLE = _ATOMS | {complex, bytes, torch.dtype, torch.device, torch.Size}
_LISTS: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size"}
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_DICT_KINDS = frozenset({*_DICTS.values(), "default"})
_KEYS = _IMMUTABLE | {tuple, frozenset}
_FACTORIES = {f.__name__: f for f in (int, float, str, list, dict, set, tuple)}
_BUILDERS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "size": torch.Size,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "ordered": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
}


def encode(value: Any, path: str, tensors: list[torch.Tensor]) -> Structure:
    """Turns a tree of plain values into what JSON can hold.

    Args:
        value: of dicts, lists, tuples, sets, numbers, strings, bytes, tensors, NumPy arrays and
            scalars, and torch's sizes, types and devices.
        path: what to call the value in an error, such as ``scheduler``.
        tensors: takes the tensors found, detached, and not copied.

    Returns:
        A structure for ``json.dumps``; ``decode`` makes the value from it again.

    Raises:
        UsageError: something in the tree is none of these; the message says what and where.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter):
        return ["tensor", _noted(value, path, tensors)]
    if kind in _LISTS:
        items = [encode(item, f"{path}[{i}]", tensors) for i, item in enumerate(value)]
        return [_LISTS[kind], items]
    if kind in _DICTS:
        return [_DICTS[kind], _pairs(value, path, tensors)]
    if kind in _SETS:
        members = [encode(item, path, tensors) for item in value]
        return [_SETS[kind], sorted(members, key=json.dumps)]
    if kind is defaultdict:
        factory = value.default_factory
        if factory is None or factory in _FACTORIES.values():
            name = factory and factory.__name__
            return ["default", _pairs(value, path, tensors), name]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (torch.dtype, torch.device):
        return [kind.__name__, str(value).removeprefix("torch.")]
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(
        value, (numpy.ndarray, numpy.generic)
    ):
        return _encode_numpy(numpy, value, path, tensors)
    raise _unfit(value, path)


def decode(structure: Structure, tensors: Sequence[Any]) -> Any:
    """Makes the value again that ``encode`` was given.

    Args:
        structure: as ``json.loads`` gives it.
        tensors: what to put where the tensors were, by their numbers.

    Raises:
        UsageError: the structure comes from another version of this package.
    """
    if type(structure) is not list:
        return structure
    kind, content, *more = structure
    if kind == "tensor":
        return tensors[content]
    if kind in _DICT_KINDS:
        pairs = [(decode(key, tensors), decode(item, tensors)) for key, item in content]
        if kind == "default":
            return defaultdict(_FACTORIES[more[0]] if more[0] else None, pairs)
        return _BUILDERS[kind](pairs)
    if kind in _BUILDERS:
        return _BUILDERS[kind]([decode(item, tensors) for item in content])
    match kind:
        case "complex":
            return complex(content, more[0])
        case "bytes":
            return bytes.fromhex(content)
        case "device":
            return torch.device(content)
        case "dtype" if isinstance(dtype := getattr(torch, content, None), torch.dtype):
            return dtype
        case "array":
            held = tensors[content]
            return held.cpu().numpy() if isinstance(held, torch.Tensor) else held
        case "scalar":
            import numpy  # the one who sent it has it, too

            return numpy.frombuffer(bytes.fromhex(content), dtype=more[0])[0]
    raise UsageError(
        f"a rank sent a value of the unknown kind {kind!r}; run the same version of "
        "elastic-runtime and PyTorch everywhere"
    )


def pack(value: Any, path: str) -> Structure:
    """The same as one piece of JSON, with the bytes of tensors in it; for small ones.

    Args:
        value: see ``encode``.
        path: what to call it in an error.

    Raises:
        UsageError: see ``encode``.
    """
    tensors: list[torch.Tensor] = []
    structure = encode(value, path, tensors)
    return [structure, [pack_tensor(tensor) for tensor in tensors]]


def unpack(packed: Structure) -> Any:
    """Makes the value again that ``pack`` was given; its tensors are on the CPU."""
    structure, tensors = packed
    return decode(structure, [unpack_tensor(tensor) for tensor in tensors])


def pack_tensor(tensor: torch.Tensor) -> list[Any]:
    """A small tensor as JSON: its type, its shape and its bytes."""
    plain = tensor.detach().cpu().contiguous()
    data = ctypes.string_at(plain.data_ptr(), plain.nbytes)
    return [str(plain.dtype).removeprefix("torch."), list(plain.shape), data.hex()]


def unpack_tensor(packed: list[Any]) -> torch.Tensor:
    """The tensor of ``pack_tensor``, on the CPU."""
    kind, shape, digits = packed
    empty = torch.empty(shape, dtype=getattr(torch, kind), device="cpu")
    if digits:
        data = torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8)
        empty.view(-1).view(torch.uint8).copy_(data)
    return empty


def check(value: object, path: str) -> None:
    """Refuses what could not be given to another rank, while it can be corrected.

    Raises:
        UsageError: see ``encode``.
    """
    if type(value) not in _ATOMS:
        encode(value, path, [])


def is_tensor(structure: Structure) -> bool:
    """Whether a structure stands for a tensor; its number follows."""
    return type(structure) is list and structure[0] == "tensor"


def copied(value: Any) -> Any:
    """A copy that shares nothing that can change; far faster than ``deepcopy`` on plain values."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:  # of plain values mostly: the call would cost more than the look
        return {k: v if type(v) in _IMMUTABLE else copied(v) for k, v in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    if kind is tuple:
        return tuple([copied(item) for item in value])
    if isinstance(value, dict):  # of another kind
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = copied(item)
        return made
    if kind is torch.Tensor:
        return value.detach().clone()
    return copy.deepcopy(value)


def canonical(structure: Structure) -> Structure:
    """The same structure with all dicts in one order, for comparisons between ranks."""
    if type(structure) is not list:
        return structure
    kind, content, *more = structure
    if kind in _DICT_KINDS:
        pairs = [[key, canonical(item)] for key, item in content]
        return [kind, sorted(pairs, key=lambda pair: json.dumps(pair[0])), *more]
    if isinstance(content, list):
        return [kind, [canonical(item) for item in content], *more]
    return structure


def _pairs(value: dict[Any, Any], path: str, tensors: list[torch.Tensor]) -> list[list[Structure]]:
    pairs = []
    for key, item in value.items():
        if type(key) not in _KEYS:
            raise _unfit(key, f"the key {key!r} of {path}")
        named = isinstance(key, str) and key.isidentifier()
        inner = f"{path}.{key}" if named else f"{path}[{key!r}]"
        pairs.append([encode(key, inner, tensors), encode(item, inner, tensors)])
    return pairs


def _noted(tensor: torch.Tensor, path: str, tensors: list[torch.Tensor]) -> int:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UsageError(
            f"{path} is a {tensor.layout} tensor on {tensor.device}, which cannot be given to "
            "another rank; keep a dense tensor in the State"
        )
    tensors.append(tensor.detach())
    return len(tensors) - 1


def _encode_numpy(numpy: Any, value: Any, path: str, tensors: list[torch.Tensor]) -> Structure:
    if value.dtype.kind not in "biufc":
        raise _unfit(value, path)
    if isinstance(value, numpy.generic):
        return ["scalar", value.tobytes().hex(), value.dtype.str]
    try:
        tensor = torch.from_numpy(value.copy(order="C"))
    except (TypeError, ValueError):
        raise _unfit(value, path) from None
    return ["array", _noted(tensor, path, tensors)]


def _unfit(value: object, path: str) -> UsageError:
    kind = type(value)
    return UsageError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be given to another rank "
        "without running code; use plain values (numbers, strings, tensors, lists, dicts) "
        "or leave it out of the State"
    )
