"""What is looked for in a pickle before anything is made of it."""

from __future__ import annotations

import gc
import pickle
import pickletools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.entries.tensor_memory import without_collection
from elastic_runtime.checkpoint.format.metadata_reader import read_contents
from elastic_runtime.errors import DamagedCheckpoint

PUT_FAR = b"r" + struct.pack("<I", 0xFFFFFFF0)  # room for 4,294,967,280 objects

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


def refusal(data: bytes) -> str:
    with pytest.raises(DamagedCheckpoint) as caught:
        read_contents("here", data, [])
    return str(caught.value)


@given(plain, st.integers(0, 5), st.integers(0, 60))
def test_a_number_without_measure_is_found_wherever_it_stands(
    value: Any, protocol: int, at: int
) -> None:
    data = pickle.dumps(value, protocol)
    starts = [position for _, _, position in pickletools.genops(data)]
    cut = starts[at % len(starts)]
    assert "more objects" in refusal(data[:cut] + PUT_FAR + data[cut:])


@given(plain, st.integers(0, 5))
def test_bytes_that_look_like_one_are_none(value: Any, protocol: int) -> None:
    odd = ["p4294967280\n", "r\xf0\xff\xff\x0f", value]
    assert "more objects" not in refusal(pickle.dumps(odd, protocol))


def test_garbage_is_looked_for_again_whatever_happens() -> None:
    def fail() -> None:
        with without_collection():
            assert not gc.isenabled()
            raise DamagedCheckpoint("it is damaged")

    with pytest.raises(DamagedCheckpoint):
        fail()
    assert gc.isenabled()
