"""This rank's part of the state, as the bytes of its file: in place, or copied.

A save that training waits for is written straight from the tensors. One in the background is
written from an *image* of the file in memory, which is made and touched once: all that training
pays is the copy of each tensor to its place in it.

Tensors on a GPU are copied into pinned memory on a stream of their own, while training continues.
What changes before the next step of an optimizer, such as the statistics of a normalization, is
copied in the order of the program; parameters and the optimizer's state follow on the side, and
``optimizer.step()`` waits for them on the GPU (``wait_for_copies``), not the program.
"""

from __future__ import annotations

import ctypes
import io
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastic_runtime.checkpoint.format.rank_outline import Item
from elastic_runtime.checkpoint.format.tensor_archive import Wrapping, wrapping
from elastic_runtime.checkpoint.format.tensor_memory import local_chunk
from elastic_runtime.checkpoint.save.background_thread import BackgroundThread, Task
from elastic_runtime.errors import CheckpointUsageError
from elastic_runtime.parts.tensor_memory import bytes_of, local_tensor

# From here on starting threads costs little in comparison, in bytes.
_WORTH_THREADS = 16 << 20

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True, slots=True)
class PartBytes:
    """The bytes of one part of a file.

    Attributes:
        views: one after the other; they keep alive what they show.
        data: where in them a tensor's raw bytes begin, -1 if there is none.
    """

    views: tuple[memoryview, ...]
    data: int = -1

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(view.nbytes for view in self.views)


def describe(key: str, value: object, *, may_differ: bool = False) -> Item:
    """What a rank says of a part of the state.

    Args:
        key: of the part.
        value: a tensor, or a piece of one; or anything else.
        may_differ: other ranks may have another tensor there, unless it is sharded.

    Raises:
        CheckpointError: a tensor of a kind that has no plain bytes.
    """
    if not isinstance(value, torch.Tensor):
        return Item(key)
    chunk, mine = local_chunk(value), local(value)
    if not _has_plain_bytes(mine):
        raise CheckpointUsageError(
            f"{key} is a {mine.layout} {type(mine).__name__} on {mine.device}"
            f"{', quantized' if mine.is_quantized else ''}, which has no plain bytes and cannot be "
            "saved; give a dense tensor, or keep it out of the state "
            "(register_buffer(persistent=False))"
        )
    own = may_differ and not isinstance(value, DTensor)
    dtype = _name(mine.dtype)
    return Item(key, dtype, tuple(value.shape), chunk.offsets, chunk.sizes, mine.nbytes, own)


def _has_plain_bytes(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return False
    # Subclasses may keep their content in other tensors; and memory may have been freed.
    return not tensor.nbytes or tensor.data_ptr() != 0


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def matches(item: Item, key: str, value: object) -> bool:
    """Whether this is what a rank would say of a part of the state.

    It makes no objects: thousands of them would have Python look for garbage in every save.
    """
    if not isinstance(value, torch.Tensor):
        return item.key == key and not item.dtype
    if isinstance(value, DTensor) or value.layout is not torch.strided:
        return describe(key, value) == item
    return (
        item.key == key
        and item.dtype == _name(value.dtype)
        and item.shape == value.shape
        and item.sizes == item.shape
        and (value.data_ptr() != 0 or not item.bytes)
    )


def local(value: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds, outside of autograd."""
    return local_tensor(value).detach()


def of_tensor(tensor: torch.Tensor) -> PartBytes:
    """A tensor straight from where it is; one that is elsewhere or scattered is copied first."""
    plain = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    around = wrapping(plain.dtype, tuple(plain.shape), plain.nbytes)
    views = (memoryview(around.head), bytes_of(plain), memoryview(around.tail))
    return PartBytes(views, len(around.head))


def size_of(item: Item) -> int:
    """How many bytes a tensor takes in a file."""
    around = _around(item)
    return len(around.head) + item.bytes + len(around.tail)


def _around(item: Item) -> Wrapping:
    return wrapping(getattr(torch, item.dtype), item.sizes, item.bytes)


def of_value(value: object) -> PartBytes:
    """Any other value, as ``torch.save`` has it."""
    out = io.BytesIO()
    torch.save(value, out)
    return PartBytes((out.getbuffer(),))


class Copies(Protocol):
    """How tensors come into an image."""

    def copy(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copies what training may change at any time."""

    def copy_late(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copies what training leaves alone until ``wait_for_copies``."""

    def wait_for_copies(self) -> None:
        """Called before the state is changed: what changes it comes after all copies."""

    def wait(self) -> None:
        """Returns when all has been copied. Any thread may call it."""


@dataclass(frozen=True, slots=True)
class _Move:
    to: int
    source: int
    size: int


def _move(moves: Sequence[_Move], threads: int) -> None:
    """Copies memory, with as many threads as PyTorch would use, and without its pools.

    Each ``copy_`` would bring all threads together twice: on a busy machine, where one of them
    always has to wait for a core, 64 copies took 20 times as long as one of the same size.
    """
    shares = _shares(moves, threads if sum(move.size for move in moves) >= _WORTH_THREADS else 1)
    helpers = [threading.Thread(target=_move_all, args=(share,)) for share in shares[1:]]
    for helper in helpers:
        helper.start()
    _move_all(shares[0])
    for helper in helpers:
        helper.join()


def _move_all(moves: Sequence[_Move]) -> None:
    for move in moves:
        ctypes.memmove(move.to, move.source, move.size)


def _shares(moves: Sequence[_Move], count: int) -> list[list[_Move]]:
    """Cuts all moves into ``count`` equal parts, in order."""
    total = sum(move.size for move in moves)
    shares: list[list[_Move]] = [[]]
    room = -(-total // count)
    for move in moves:
        done = 0
        while done < move.size:
            if room == 0:
                shares.append([])
                room = -(-total // count)
            piece = min(room, move.size - done)
            shares[-1].append(_Move(move.to + done, move.source + done, piece))
            done += piece
            room -= piece
    return shares


class PlainCopies:
    """Copies at once: for tensors on the CPU."""

    def copy(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copies each tensor to its place."""
        moves = []
        for place, tensor in zip(places, tensors, strict=True):
            if (
                tensor.is_cpu
                and tensor.is_contiguous()
                and not (tensor.is_conj() or tensor.is_neg())
            ):
                moves.append(_Move(place.data_ptr(), tensor.data_ptr(), place.nbytes))
            else:
                place.copy_(tensor)
        _move(moves, torch.get_num_threads())

    copy_late = copy

    def wait_for_copies(self) -> None:
        """Nothing is under way."""

    def wait(self) -> None:
        """Nothing is under way."""


class CudaCopies:
    """Copies on a stream of its own, which training only waits for before it changes anything."""

    def __init__(self, device: torch.device) -> None:
        """Makes the stream.

        Args:
            device: of the tensors.
        """
        self._stream = torch.cuda.Stream(device)
        self._done = torch.cuda.Event()
        self._fenced = True

    def copy(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copies each tensor to its place, in the order of the program."""
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        self._done.record()

    def copy_late(self, places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copies each tensor to its place, beside the program."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)  # its memory is not given away before
            self._done.record()
        self._fenced = False

    def wait_for_copies(self) -> None:
        """Makes what the program asks the GPU for from now on wait for the copies."""
        if not self._fenced:
            self._fenced = True
            self._done.wait(torch.cuda.current_stream(self._stream.device))

    def wait(self) -> None:
        """Waits for the GPU."""
        self._done.synchronize()


def copies_for(tensors: Sequence[torch.Tensor]) -> Copies:
    """The way that suits where the tensors are."""
    for tensor in tensors:
        if tensor.is_cuda:
            return CudaCopies(tensor.device)
    return PlainCopies()


@dataclass(frozen=True, slots=True)
class _Span:
    offset: int
    around: Wrapping
    size: int

    @property
    def length(self) -> int:
        return len(self.around.head) + self.size + len(self.around.tail)


class Image:
    """The tensors of this rank's file, in memory.

    Attributes:
        size: in bytes.
        copies: how the tensors come here.
    """

    def __init__(
        self,
        items: Sequence[Item],
        copies: Copies,
        allocate: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """Lays the file out; its memory is taken and not yet touched.

        Args:
            items: the tensors of the file, in order.
            copies: how they come here.
            allocate: gives so many bytes of memory; None: ordinary memory, pinned for a GPU.
        """
        self.copies = copies
        self._spans: list[_Span] = []
        size = 0
        for item in items:
            span = _Span(size, _around(item), item.bytes)
            self._spans.append(span)
            size += span.length
        self.size = size
        self._memory = (allocate or self._allocate)(size)
        self._targets = [self._target(i, p) for i, p in zip(items, self._spans, strict=True)]

    def _allocate(self, size: int) -> torch.Tensor:
        pinned = torch.cuda.is_available() and not isinstance(self.copies, PlainCopies)
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)

    def _target(self, item: Item, span: _Span) -> torch.Tensor:
        begin = span.offset + len(span.around.head)
        raw = self._memory[begin : begin + span.size]
        return raw.view(getattr(torch, item.dtype)).view(item.sizes)

    def warm(self) -> None:
        """Touches the memory and writes all that stays: the first copy would be a slow one."""
        self._memory.zero_()
        memory = bytes_of(self._memory)
        for span in self._spans:
            head, tail = span.around.head, span.around.tail
            memory[span.offset : span.offset + len(head)] = head
            end = span.offset + span.length
            memory[end - len(tail) : end] = tail

    def stage(self, tensors: Sequence[torch.Tensor], late: Callable[[torch.Tensor], bool]) -> None:
        """Copies the state, as it is now.

        Args:
            tensors: this rank's, one for each item.
            late: whether training leaves this one alone until the next step of an optimizer.
        """
        now: list[tuple[torch.Tensor, torch.Tensor]] = []
        later: list[tuple[torch.Tensor, torch.Tensor]] = []
        for target, tensor in zip(self._targets, tensors, strict=True):
            (later if late(tensor) else now).append((target, tensor))
        self.copies.copy([target for target, _ in now], [tensor for _, tensor in now])
        self.copies.copy_late([target for target, _ in later], [tensor for _, tensor in later])

    def sources(self) -> Iterator[PartBytes]:
        """The parts of the file, once all copies are there."""
        self.copies.wait()
        memory = bytes_of(self._memory)
        for span in self._spans:
            raw = memory[span.offset : span.offset + span.length]
            yield PartBytes((raw,), len(span.around.head))


class ImageMemory:
    """The image of this rank's file, whose memory is kept from one save to the next.

    Attributes:
        image: the last one; None: there is none, or another save still uses it.
        warming: touches its memory for the first time, beside training.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        copies: Callable[[Sequence[torch.Tensor]], Copies] = copies_for,
    ) -> None:
        """Takes no memory yet.

        Args:
            optimizers: of the State.
            copies: how tensors come into the image.
        """
        self.image: Image | None = None
        self.warming: Task | None = None
        self._optimizers = optimizers
        self._make_copies = copies
        self._items: Sequence[Item] = ()
        self._hook: RemovableHandle | None = None

    def fit(
        self, items: Sequence[Item], tensors: Sequence[torch.Tensor], thread: BackgroundThread
    ) -> Image:
        """The image for these tensors: the last one, or a new one whose memory is being warmed.

        Args:
            items: what they are.
            tensors: of this rank's file.
            thread: the one that saves: the last image is in use no more when it gets to this.
        """
        if self.image is not None and tuple(self._items) == tuple(items):
            return self.image
        self.image = None
        image = Image(items, self._make_copies(tensors))
        self.image, self._items = image, items
        self.warming = Task(thread, lambda task: image.warm(), wanted=False)
        if self._hook is None and not isinstance(image.copies, PlainCopies):
            self._hook = register_optimizer_step_pre_hook(lambda *_: self.wait_for_copies())
        return image

    def stage(self, image: Image, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors as they are now; what only an optimizer changes, beside training."""
        self.warming = None
        image.stage(tensors, self._late(image))

    def _late(self, image: Image) -> Callable[[torch.Tensor], bool]:
        """Which tensors only an optimizer changes."""
        if isinstance(image.copies, PlainCopies):
            return lambda tensor: False
        found: set[int] = set()
        for optimizer in self._optimizers:
            owned = [p for group in optimizer.param_groups for p in group["params"]]
            owned += [v for p in owned for v in optimizer.state.get(p, {}).values()]
            found |= {local(o).data_ptr() for o in owned if isinstance(o, torch.Tensor)}
        return lambda tensor: tensor.data_ptr() in found

    def wait_for_copies(self) -> None:
        """Makes the training that follows wait, on the GPU, for the copies."""
        if self.image is not None:
            self.image.copies.wait_for_copies()

    def leave(self) -> None:
        """Leaves the image to a save that does not end; the next save allocates another one."""
        self.image = self.warming = None

    def close(self) -> None:
        """Frees all memory."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self.image = None
