"""The checksum of a whole from those of its parts."""

from __future__ import annotations

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.format.crc_combine import combined_crc
from elastic_runtime.checkpoint.format.manifest import Part


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_it_is_that_of_the_bytes(pieces: list[bytes]) -> None:
    parts = [Part(0, len(piece), crc32c.crc32c(piece)) for piece in pieces]
    assert combined_crc(parts) == crc32c.crc32c(b"".join(pieces))


def test_lengths_beyond_the_period_of_the_polynomial() -> None:
    # Zeros after something: as often as the polynomial's powers repeat, nothing changes.
    first = Part(0, 4, crc32c.crc32c(b"abcd"))
    period = (1 << 31) - 1  # of x modulo the polynomial, in bits
    nothing = Part(0, period, 0)
    assert combined_crc([first, nothing]) == combined_crc([first])
