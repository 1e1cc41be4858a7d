"""The checksum of a whole file from the checksums of its parts, without reading anything again.

The checksums of parts are made where bytes are read (``part_reader``) and written
(``file_writer``).

A CRC is a polynomial modulo a fixed one. To append n bytes means to multiply what was there by
x^(8n); so the checksum of a file follows from those of its parts, and nothing is read twice.

Nothing here needs torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.checkpoint.format.manifest import Part

_CRC32C = 0x82F63B78  # its polynomial; the highest bit stands for x^0
_ONE = 1 << 31


def combined_crc(parts: Iterable[Part]) -> int:
    """The crc32c of parts that follow each other.

    Args:
        parts: in order, each with its own checksum.
    """
    whole = 0
    for part in parts:
        whole = _times(_shift(part.length), whole) ^ part.crc32c
    return whole


@lru_cache(maxsize=1024)  # many tensors of a model have the same size
def _shift(length: int) -> int:
    """x^(8 * length), by squaring."""
    power, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            power = _times(power, square)
        square = _times(square, square)
        length >>= 1
    return power


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _CRC32C if b & 1 else b >> 1
    return product
