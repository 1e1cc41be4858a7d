"""Values of which every rank has its own, and what becomes of them in another world.

In a world of the same size each rank gets back what it had. Otherwise a rank has no counterpart:

* what was the same on all of several ranks stays the same on all ranks;
* a generator gets a new seed, from the state that rank 0's had, the rank and the size of the world:
  no two ranks draw the same numbers, and the same change from the same checkpoint always draws
  the same ones;
* any other value is what the program says (``PerRank(value, adapt=...)``), or else stays what the
  program has made of it, and an event says so.
"""

from __future__ import annotations

import hashlib
import random
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from elastic_runtime.parts.tensor_memory import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Which rank this is, of how many.

    Attributes:
        rank: this one.
        world: how many there are.
    """

    rank: int = 0
    world: int = 1


class PerRank:
    """Something in a State that differs from rank to rank.

    Example::

        state = elastic.State(model=model, replay=elastic.PerRank(buffer))

    Generators (``torch.Generator``, ``random.Random``, ``numpy.random.Generator``) are kept for
    each rank without being wrapped.

    Attributes:
        value: a plain value, or an object with ``state_dict`` and ``load_state_dict``. A plain
            value is read at each commit or save, and replaced by a load.
    """

    def __init__(
        self, value: Any, adapt: Callable[[Sequence[Any], int, int], Any] | None = None
    ) -> None:
        """Takes this rank's value.

        Args:
            value: see above.
            adapt: called as ``adapt(saved, rank, world)`` when the checkpoint comes from a world
                of another size, with what each rank had, by rank; returns what this rank is to
                have. None: it keeps the value that it has, unless all ranks had the same.
        """
        self.value = value
        self._adapt = adapt

    @property
    def _is_object(self) -> bool:
        return hasattr(self.value, "state_dict") and hasattr(self.value, "load_state_dict")

    def own_state(self) -> Any:
        """What is to be saved of this rank."""
        return self.value.state_dict() if self._is_object else self.value

    def take(self, state: Any) -> None:
        """Goes on from a state that was saved."""
        if self._is_object:
            self.value.load_state_dict(state)
        else:
            self.value = state

    def take_foreign(self, states: Sequence[Any], place: RankPosition) -> bool:
        """Goes on from the states of the ranks of another world.

        Returns:
            Whether any of it was used.
        """
        if self._adapt is None:
            return False
        self.take(self._adapt(states, place.rank, place.world))
        return True


class OwnedByRank(Protocol):
    """What this module does with a value of this rank."""

    def own_state(self) -> Any:
        """What is to be saved of this rank, as a plain value."""

    def take(self, state: Any) -> None:
        """Goes on from a state that was saved."""

    def take_foreign(self, states: Sequence[Any], place: RankPosition) -> bool:
        """Goes on from the states of the ranks of another world; False if it could not."""


class _Seeded(ABC):
    """A generator, or several, as seen from here."""

    @abstractmethod
    def own_state(self) -> Any: ...

    @abstractmethod
    def take(self, state: Any) -> None: ...

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Starts from a seed of 63 bits."""

    def take_foreign(self, states: Sequence[Any], place: RankPosition) -> bool:
        text = f"{value_digest(states[0])} {place.rank} of {place.world}"
        self.seed(int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) >> 1)
        return True


@dataclass(slots=True)
class _Torch(_Seeded):
    generator: torch.Generator

    def own_state(self) -> Any:
        return self.generator.get_state()

    def take(self, state: Any) -> None:
        self.generator.set_state(state)

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)


@dataclass(slots=True)
class _Python(_Seeded):
    generator: random.Random

    def own_state(self) -> Any:
        return self.generator.getstate()

    def take(self, state: Any) -> None:
        self.generator.setstate(state)

    def seed(self, seed: int) -> None:
        self.generator.seed(seed)


@dataclass(slots=True)
class _NumPy(_Seeded):
    bits: Any  # numpy.random.BitGenerator

    def own_state(self) -> Any:
        return _without_arrays(self.bits.state)

    def take(self, state: Any) -> None:
        self.bits.state = _with_arrays(state, self.bits.state)

    def seed(self, seed: int) -> None:
        self.bits.state = type(self.bits)(seed).state


class _NumPyGlobal(_Seeded):
    def __init__(self, numpy_random: Any) -> None:
        self._random = numpy_random

    def own_state(self) -> Any:
        return _without_arrays(self._random.get_state(legacy=False))

    def take(self, state: Any) -> None:
        self._random.set_state(_with_arrays(state, self._random.get_state(legacy=False)))

    def seed(self, seed: int) -> None:
        self._random.seed([seed & 0xFFFFFFFF, seed >> 32])


class GlobalGenerators(_Seeded):
    """The global generators of this process.

    They are those of PyTorch (CPU, and each GPU in use), Python and NumPy, the latter if the
    program uses it.
    """

    def _all(self) -> dict[str, _Seeded]:
        found: dict[str, _Seeded] = {"torch": _Torch(torch.default_generator)}
        # The one that the functions of the module ``random`` are methods of.
        found["python"] = _Python(random.seed.__self__)  # type: ignore[attr-defined]
        if numpy_random := sys.modules.get("numpy.random"):
            found["numpy"] = _NumPyGlobal(numpy_random)
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        for index, generator in enumerate(cuda):
            found[f"cuda{index}"] = _Torch(generator)
        return found

    def own_state(self) -> Any:
        return {name: generator.own_state() for name, generator in self._all().items()}

    def take(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("what was saved is not the state of the global generators")
        for name, generator in self._all().items():
            if name in state:
                generator.take(state[name])

    def seed(self, seed: int) -> None:
        for generator in self._all().values():
            generator.seed(seed)


def owned_by_rank(value: Any) -> OwnedByRank | None:
    """How a value of this rank is saved and loaded; None if it is one of all ranks."""
    if isinstance(value, PerRank):
        return value
    if isinstance(value, torch.Generator):
        return _Torch(value)
    if isinstance(value, random.Random):
        return _Python(value)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and isinstance(value, numpy_random.Generator):
        return _NumPy(value.bit_generator)
    return None


def take_from_others(owner: OwnedByRank, states: Sequence[Any], place: RankPosition) -> bool:
    """Goes on from what the ranks of a world of another size have saved.

    Args:
        owner: the value of this rank.
        states: of all of them, by rank.
        place: this rank.

    Returns:
        Whether the value continues from them; if not, it is as the program has made it.
    """
    # One rank alone does not show whether it would be the same on all.
    if len(states) > 1 and len({value_digest(state) for state in states}) == 1:
        owner.take(states[0])
        return True
    return owner.take_foreign(states, place)


def value_digest(value: Any) -> str:
    """The same text for equal plain values, and for no others."""
    found = hashlib.sha256()
    _feed(found.update, value)
    return found.hexdigest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        update(bytes_of(value.detach().cpu().contiguous()))
    elif isinstance(value, dict):
        update(f"dict {len(value)} ".encode())
        for key, item in value.items():
            _feed(update, key)
            _feed(update, item)
    elif isinstance(value, list | tuple | set):
        update(f"{type(value).__name__} {len(value)} ".encode())
        for item in sorted(value, key=repr) if isinstance(value, set) else value:
            _feed(update, item)
    else:
        text = repr(value)
        update(f"{type(value).__name__} {len(text)} {text} ".encode())


def _without_arrays(state: Any) -> Any:
    """The state of a NumPy generator in plain values."""
    if isinstance(state, dict):
        return {key: _without_arrays(value) for key, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def _with_arrays(state: Any, like: Any) -> Any:
    """The reverse, for a generator whose present state shows what is an array."""
    if isinstance(like, dict):
        return {key: _with_arrays(value, like.get(key)) for key, value in state.items()}
    return sys.modules["numpy"].asarray(state, like.dtype) if hasattr(like, "dtype") else state
