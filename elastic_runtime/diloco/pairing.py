"""Which parameters of the common model belong to which of a rank's own, and what cannot be."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.parts.wrappers import bare, unwrapped
from elastic_runtime.training.state import State

_DDP = torch.nn.parallel.DistributedDataParallel
_REPLICA = "replica = copy.deepcopy(model); inner = AdamW(replica.parameters()); "
_EXAMPLES = {
    "DiLoCo": _REPLICA + "outer = SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True); "
    "DiLoCo(State(model=model, outer=outer), replica, inner=inner, outer=outer, sync_every=500)",
    "LocalSGD": _REPLICA + "LocalSGD(State(model=model), replica, inner=inner, sync_every=8)",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the common model, and the one of this rank's own that belongs to it."""

    name: str
    common: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True, slots=True)
class Pairing:
    """A common model and a rank's own.

    Attributes:
        name: of the common model in the State.
        replica: this rank's own.
        parameters: those that the inner optimizer trains, in the order of the model.
        floats: buffers that can be averaged.
        others: all other buffers.
        still: parameters that are not trained.
    """

    name: str
    replica: torch.nn.Module
    parameters: list[Pair]
    floats: list[Pair]
    others: list[Pair]
    still: list[Pair]


def pair_up(
    kind: str,
    state: State,
    replica: torch.nn.Module,
    inner: torch.optim.Optimizer,
    outer: torch.optim.Optimizer | None,
) -> Pairing:
    """Finds the model of the State that a replica belongs to.

    Args:
        kind: ``DiLoCo`` or ``LocalSGD``.
        state: holds the common model, and its optimizer.
        replica: what a rank trains.
        inner: trains it.
        outer: of the common model; None for ``LocalSGD``.

    Raises:
        UsageError: they do not belong together; the message says what to write.
    """
    _check_kinds(kind, state, replica, inner, outer)
    name, model = _model_of(kind, state, replica, outer)
    plain = unwrapped(replica)
    theirs, ours = dict(model.named_parameters()), dict(plain.named_parameters())
    trained = _held(inner)
    if foreign := trained - {id(parameter) for parameter in ours.values()}:
        raise UsageError(
            f"{kind}(inner=…) holds {len(foreign)} parameters that are not the replica's; the "
            f"inner optimizer is that of the replica: {_EXAMPLES[kind]}"
        )
    pairs = [Pair(key, theirs[key], ours[key]) for key in ours]
    parameters = [pair for pair in pairs if id(pair.own) in trained]
    if outer is not None:
        _check_outer(kind, state, name, outer, parameters)
    common = dict(model.named_buffers())
    buffers = [Pair(key, common[key], own) for key, own in plain.named_buffers()]
    floats = [p for p in buffers if p.own.is_floating_point() or p.own.is_complex()]
    others = [pair for pair in buffers if pair not in floats]
    still = [pair for pair in pairs if id(pair.own) not in trained]
    return Pairing(name, replica, parameters, floats, others, still)


def _check_kinds(
    kind: str, state: object, replica: object, inner: object, outer: object | None
) -> None:
    if not isinstance(state, State):
        raise UsageError(f"{kind} needs the State first, not a {_kind(state)}: {_EXAMPLES[kind]}")
    if not isinstance(replica, torch.nn.Module):
        raise UsageError(
            f"{kind} needs the model that this rank trains, not a {_kind(replica)}: "
            f"{_EXAMPLES[kind]}"
        )
    if isinstance(replica, _DDP):
        raise _wrapped(kind)
    for word, one in (("inner", inner), ("outer", outer)):
        left_out = word == "outer" and one is None and kind == "LocalSGD"
        if not left_out and not isinstance(one, torch.optim.Optimizer):
            raise UsageError(
                f"{kind}({word}=…) is a {_kind(one)}, not an optimizer: {_EXAMPLES[kind]}"
            )
    if state._alone is not None:
        raise UsageError(
            f"this State has a {type(state._alone).__name__} already, and two cannot both say when "
            "it is committed; take one of them"
        )
    objects = [bare(one) for one in state._named.values()]
    for word, one in (("replica", replica), ("inner optimizer", inner)):
        if any(bare(one) is other for other in objects):
            raise UsageError(
                f"leave the {word} out of the State, which is what all ranks have in common"
                f"{', and make it a copy of the model' if one is replica else ''}: "
                f"{_EXAMPLES[kind]}"
            )


def _model_of(
    kind: str, state: State, replica: torch.nn.Module, outer: torch.optim.Optimizer | None
) -> tuple[str, torch.nn.Module]:
    """The module of the State with the same parameters and buffers, and its name."""
    wanted = _forms(unwrapped(replica))
    modules = {n: unwrapped(m) for n, m in state._named.items() if isinstance(m, torch.nn.Module)}
    found = [name for name, module in modules.items() if _forms(module) == wanted]
    if len(found) > 1 and outer is not None:  # one is an average of the other, say
        held = _held(outer)
        found = [n for n in found if any(id(p) in held for p in modules[n].parameters())]
    if len(found) != 1:
        what = "several modules" if found else "no module"
        raise UsageError(
            f"the State has {what} with the names and shapes of the replica (it has "
            f"{', '.join(modules) or 'none'}); give it the common model, of which the replica is "
            f"a copy: {_EXAMPLES[kind]}"
        )
    model = modules[found[0]]
    own = {id(tensor) for tensor in (*replica.parameters(), *replica.buffers())}
    if any(id(tensor) in own for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(
            f"the replica shares its parameters with {found[0]!r} of the State; the common model "
            "changes at syncs only, so make a copy: replica = copy.deepcopy(model)"
        )
    return found[0], model


def _check_outer(
    kind: str, state: State, name: str, outer: torch.optim.Optimizer, parameters: list[Pair]
) -> None:
    held, wanted = _held(outer), {id(pair.common) for pair in parameters}
    if held - wanted or wanted - held:
        raise UsageError(
            f"{kind}(outer=…) holds {len(held & wanted)} of the {len(wanted)} parameters of "
            f"{name!r} that the inner optimizer trains, and {len(held - wanted)} others; it must "
            f"hold just these: {_EXAMPLES[kind]}"
        )
    if not any(bare(outer) is bare(one) for one in state._named.values()):
        raise UsageError(
            f"the outer optimizer is not in the State: what it remembers would be lost with a "
            f"fault; write State({name}=…, outer=outer)"
        )


def refuse_ddp(kind: str, replica: torch.nn.Module) -> None:
    """Refuses a replica that a script has wrapped after it was given to a DiLoCo.

    It takes as long as a look at each object of the process, some 0.1 s where there are a million.

    Args:
        kind: ``DiLoCo`` or ``LocalSGD``.
        replica: what a rank is to train alone.

    Raises:
        UsageError: there is a ``DistributedDataParallel`` of it.
    """
    plain = unwrapped(replica)
    for one in gc.get_objects():
        if issubclass(type(one), _DDP) and unwrapped(one) is plain:
            raise _wrapped(kind)


def _wrapped(kind: str) -> UsageError:
    return UsageError(
        "the replica is wrapped by DistributedDataParallel, which averages gradients at each step, "
        f"and {kind} trains each rank alone: use the model itself"
    )


def _forms(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _held(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _kind(one: object) -> str:
    return type(one).__qualname__
