"""The random generators of this process: remembered at a commit, put back after a fault.

This is done at each commit, and most steps use only some of the generators, if any. To read their
whole state as plain values takes longer than all else that a commit does, so their memory is looked
at first: while it is the same, they have not been used. Where a generator's memory is not as
expected, its state is read each time.
"""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from dataclasses import dataclass
from typing import Any

import torch

# The state of a Mersenne Twister, in Python as in NumPy: 624 words and a position of 4 bytes.
_WORDS = 624
_SIZE = 4 * (_WORDS + 1)
_CUDA: bool = torch.backends.cuda.is_built()


@dataclass(slots=True)
class _Kept:
    cpu: torch.Generator
    cuda: list[torch.Tensor]
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None


class RandomGenerators:
    """The global generators of PyTorch (CPU and every GPU), Python and NumPy.

    NumPy and CUDA count only where the program has loaded or initialised them by itself.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._python = _PythonGenerator()
        self._numpy = _NumpyGenerator()

    def snapshot(self) -> None:
        """Remembers where all generators are now."""
        self._kept = _Kept(
            # The clone costs less than the tensor that get_state() makes.
            cpu=torch.default_generator.clone_state(),
            cuda=[generator.get_state() for generator in _cuda()],
            python=self._python.state(),
            numpy=self._numpy.state(),
        )

    def restore(self) -> None:
        """Puts all generators back to where they were at the last snapshot, if there is one."""
        kept = self._kept
        if kept is None:
            return
        torch.default_generator.set_state(kept.cpu.get_state())
        for generator, state in zip(_cuda(), kept.cuda, strict=False):
            generator.set_state(state)
        random.setstate(kept.python)
        if kept.numpy is not None:
            sys.modules["numpy.random"].set_state(kept.numpy)


class _PythonGenerator:
    """What the functions of ``random`` use."""

    def __init__(self) -> None:
        self._generator: random.Random = random._inst
        self._kept = random.getstate()
        # CPython has the position before the words, right after the header of the object.
        *words, position = self._kept[1]
        address = id(self._generator) + object.__basicsize__
        fits = type(self._generator).__basicsize__ >= object.__basicsize__ + _SIZE
        self._memory = _Memory.with_content(address, [position, *words]) if fits else None
        self._seen = b""

    def state(self) -> tuple[Any, ...]:
        """As ``random.getstate()``."""
        if self._memory is None:
            return random.getstate()
        now = self._memory.content()
        # Of numbers of a normal distribution two are drawn at once; the second is kept here.
        if now != self._seen or self._kept[2] != self._generator.gauss_next:  # type: ignore[attr-defined]
            self._kept, self._seen = random.getstate(), now
        return self._kept


class _NumpyGenerator:
    """What the functions of ``numpy.random`` use, if it was imported."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: _Memory | None = None
        self._seen = b""
        self._kept: dict[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        """As ``numpy.random.get_state(legacy=False)``; None: not imported."""
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is None:
            return None
        generator = numpy_random.mtrand._rand._bit_generator  # a script may put another one there
        if generator is not self._generator or self._memory is None or self._kept is None:
            self._kept = _numpy_state(numpy_random)
            self._generator, self._memory = generator, _numpy_memory(generator, self._kept)
            self._seen = self._memory.content() if self._memory is not None else b""
            return self._kept
        now = self._memory.content()
        # Of numbers of a normal distribution two are drawn at once; the second is kept elsewhere.
        if now != self._seen or self._kept["has_gauss"]:
            self._kept, self._seen = _numpy_state(numpy_random), now
        return self._kept


def _numpy_state(numpy_random: Any) -> dict[str, Any]:
    state: dict[str, Any] = numpy_random.get_state(legacy=False)
    return state


def _numpy_memory(generator: Any, state: dict[str, Any]) -> _Memory | None:
    if state["bit_generator"] != "MT19937":
        return None
    inner = state["state"]
    words = [int(word) for word in inner["key"]]
    return _Memory.with_content(generator.ctypes.state_address, [*words, int(inner["pos"])])


class _Memory:
    """Where a generator has its state."""

    def __init__(self, address: int) -> None:
        self._bytes = (ctypes.c_char * _SIZE).from_address(address)

    @classmethod
    def with_content(cls, address: int, words: list[int]) -> _Memory | None:
        """The memory there, if it holds this state; None: it is elsewhere, or in another form.

        Args:
            address: of at least as many bytes as the state has, which may be read.
            words: the state, in their order.
        """
        memory = cls(address)
        return memory if memory.content() == array("I", words).tobytes() else None

    def content(self) -> bytes:
        """A copy of what it holds now."""
        return self._bytes.raw


def _cuda() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if _CUDA and torch.cuda.is_initialized() else ()
