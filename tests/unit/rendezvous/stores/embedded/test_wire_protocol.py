"""What is heard is checked before it is believed."""

from __future__ import annotations

import asyncio
import struct

import pytest

from elastic_runtime.rendezvous.stores.embedded import wire_protocol as wire
from elastic_runtime.rendezvous.stores.embedded.wire_protocol import WireError


@pytest.mark.parametrize("value", ["5", None, True, [5.0], 10**400])
def test_what_is_no_number_is_none(value: object) -> None:
    with pytest.raises(WireError, match="'ttl' is"):
        wire.field({"ttl": value}, "ttl", float)


def test_a_frame_may_be_as_large_as_its_reader_allows() -> None:
    async def read(most: int) -> wire.Message:
        reader = asyncio.StreamReader()
        reader.feed_data(wire.frame({"a": 1}))
        reader.feed_eof()
        return await wire.read_frame(reader, most)

    assert asyncio.run(read(7)) == {"a": 1}
    with pytest.raises(WireError, match="a frame of 7 bytes"):
        asyncio.run(read(6))


def test_the_announced_size_is_not_waited_for() -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack(">I", 2**32 - 1))
        await wire.read_frame(reader)

    with pytest.raises(WireError, match="a frame of 4294967295 bytes"):
        asyncio.run(asyncio.wait_for(read(), 60.0))


def test_a_transaction_that_is_none_is_refused() -> None:
    row = ["job", "", False]
    with pytest.raises(WireError, match="twice"):
        wire.to_transaction({"expects": [], "puts": [row, row], "deletes": []})
