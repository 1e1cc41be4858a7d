"""Plain values, the memory of tensors, and entries that move on with each step."""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, namedtuple
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from elastic_runtime.checkpoint.entries.committed_entries import CommittedEntries
from elastic_runtime.checkpoint.entries.plain_values import check_plain
from elastic_runtime.checkpoint.entries.tensor_memory import (
    bytes_of,
    local_chunk,
    local_tensor,
    without_collection,
)
from elastic_runtime.errors import CheckpointUsageError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

Pair = namedtuple("Pair", "a b")


PLAIN: list[Any] = [None, 1.5, "text", b"bytes", 3 + 4j, [1, (2, {"a": {3}})], torch.ones(2)]
PLAIN += [torch.Size([2]), torch.float16, torch.device("cpu"), OrderedDict(a=1), Counter("aab")]


@pytest.mark.parametrize("value", PLAIN)
def test_what_loads_plainly_is_what_is_allowed(value: Any, tmp_path: Path) -> None:
    check_plain("best", value)
    torch.save(value, tmp_path / "it")
    loaded = torch.load(tmp_path / "it", weights_only=True)
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Pair(1, 2), "best is a .*Pair"),
        ({"f": [0, len]}, r"best\['f'\]\[1\] is a builtins\.builtin_function_or_method"),
        ({object(): 1}, r"best is a builtins\.object"),
        (True.__class__, r"best is a builtins\.type"),
    ],
)
def test_what_needs_code_is_named_by_its_place(value: Any, what: str) -> None:
    with pytest.raises(CheckpointUsageError, match=f"{what}.*plain values"):
        check_plain("best", value)


# The bytes of tensors, in place


def test_the_bytes_are_those_of_the_tensor_and_keep_it_alive() -> None:
    tensor = torch.arange(4, dtype=torch.uint8)
    memory = bytes_of(tensor)
    memory[0] = 9
    assert tensor.tolist() == [9, 1, 2, 3]
    del tensor
    gc.collect()
    assert bytes(memory) == bytes([9, 1, 2, 3])
    assert bytes_of(torch.ones(3, dtype=torch.bfloat16)).nbytes == 6
    assert bytes(bytes_of(torch.ones(0))) == b""


def test_a_plain_tensor_is_here_as_a_whole() -> None:
    tensor = torch.ones(2, 3)
    assert local_tensor(tensor) is tensor
    chunk = local_chunk(tensor)
    assert (chunk.offsets, chunk.sizes) == ((0, 0), (2, 3))


def test_garbage_is_collected_again_afterwards_if_it_was_before() -> None:
    with pytest.raises(KeyError), without_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled()


# Entries that move on with each step are moved on once, by one checkpointer only


class Cursor:
    """Moves on with each step, as a sampler does."""

    def __init__(self) -> None:
        self.at = 0

    def commit(self) -> None:
        self.at += 1


def test_what_has_that_name_and_is_no_method_is_left_alone() -> None:
    """A layer, and the revision of somebody's code."""
    layered, named = torch.nn.Module(), SimpleNamespace(commit="1f0e2a")
    layered.commit, first, second = torch.nn.Linear(1, 1), Cursor(), Cursor()
    entries = {"model": layered, "config": named, "first": first, "best": 0.5, "second": second}
    CommittedEntries(entries).commit()
    assert (first.at, second.at) == (1, 1)


def test_two_checkpointers_that_both_move_an_entry_on_are_refused() -> None:
    shared = Cursor()
    one, other = CommittedEntries({"sampler": shared}), CommittedEntries({"data": shared})
    one.commit()
    other.commit()
    with pytest.raises(UsageError, match=r"the entry 'sampler' belongs to two checkpointers.*one"):
        one.commit()
    assert shared.at == 2, "the step that was refused moves nothing"


def test_an_entry_may_go_from_one_checkpointer_to_the_next() -> None:
    shared = Cursor()
    CommittedEntries({"sampler": shared}).commit()
    later = CommittedEntries({"sampler": shared})
    later.commit()
    later.commit()
    assert shared.at == 3
