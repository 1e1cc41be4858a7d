"""State dicts as JSON and tensors: what comes back is what went in, and nothing runs."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import UsageError
from elastic_runtime.parts import json_tensors
from tests.unit.programs import python

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
keys = st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.sets(atoms)
    ),
    max_leaves=20,
)


def there_and_back(value: object) -> Any:
    tensors: list[torch.Tensor] = []
    structure = json.loads(json.dumps(json_tensors.encode(value, "it", tensors)))
    return json_tensors.decode(structure, tensors)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return one == other and repr(one) == repr(other)


@given(trees)
def test_plain_trees_come_back(tree: object) -> None:
    back = there_and_back(tree)
    if "{" in repr(tree):  # a set may be printed in another order
        assert back == tree and type(back) is type(tree)
    else:
        assert same(back, tree)


@pytest.mark.parametrize(
    "value",
    [
        Counter({3: 1, 5: 2}),
        frozenset({1, 2}),
        torch.float16,
        torch.Size([2, 3]),
        torch.device("cuda:1"),
        -0.0,
        math.inf,
        {2: "a", True: "b", 1.5: "c", (1, "x"): "d", frozenset({1}): "e"},
    ],
)
def test_other_values_come_back(value: object) -> None:
    assert same(there_and_back(value), value)
    assert type(there_and_back(value)) is type(value)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(there_and_back(math.nan))


def test_a_defaultdict_keeps_its_factory() -> None:
    back = there_and_back(defaultdict(list, a=[1]))
    assert back["a"] == [1] and back["new"] == []
    with pytest.raises(UsageError, match=r"it is a collections\.defaultdict"):
        there_and_back(defaultdict(lambda: 3))


def test_tensors_go_by_number_and_are_not_copied() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    tensors: list[torch.Tensor] = []
    structure = json_tensors.encode({"a": [weight], "b": torch.zeros(1)}, "it", tensors)
    assert tensors[0].data_ptr() == weight.data_ptr() and not tensors[0].requires_grad
    assert json_tensors.decode(structure, ["first", "second"]) == {"a": ["first"], "b": "second"}


def test_numpy_comes_back() -> None:
    for array in (np.arange(6.0).reshape(2, 3)[:, ::-1], np.array(3, dtype=np.int16)):
        back = there_and_back(array)
        assert back.dtype == array.dtype and np.array_equal(back, array)
    for scalar in (np.float64(0.1), np.int32(-4), np.bool_(True)):
        back = there_and_back(scalar)
        assert type(back) is type(scalar) and back == scalar
    with pytest.raises(UsageError, match=r"it is a numpy\.ndarray"):
        there_and_back(np.array([object()]))


def test_numpy_is_not_imported() -> None:
    program = """
import sys
sys.modules["numpy"] = None  # any import of it fails
import torch
from elastic_runtime.parts import generators, json_tensors
kept = generators.RandomGenerators(); kept.snapshot(); kept.restore()
del sys.modules["numpy"]
json_tensors.check({"a": [1, torch.ones(1)]}, "it")
assert "numpy" not in sys.modules
"""
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr


class _Number(int):
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"lr_lambdas": [lambda epoch: epoch]}, r"it\.lr_lambdas\[0\] is a builtins\.function"),
        ({"a b": object()}, r"it\['a b'\] is a builtins\.object"),
        ([_Number(3)], r"it\[0\] is a .*\._Number"),
        ({str: 1}, r"the key <class 'str'> of it is a builtins\.type"),
        (torch.ones(2).to_sparse(), r"it is a torch\.sparse_coo tensor"),
        (torch.ones(2, device="meta"), r"it is a .* tensor on meta"),
        (torch.Generator(), r"it is a torch\._C\.Generator"),
    ],
)
def test_anything_else_is_refused_by_its_path(value: object, where: str) -> None:
    with pytest.raises(UsageError, match=where):
        json_tensors.check(value, "it")


def test_an_unknown_kind_is_refused() -> None:
    for structure in (["pickle", "x"], ["dtype", "load"]):
        with pytest.raises(UsageError, match="unknown kind"):
            json_tensors.decode(structure, [])


def test_copies_share_nothing_that_can_change() -> None:
    tensor = torch.zeros(1)
    value = {"a": [1, {2}], "b": (tensor, [3]), "c": Counter(x=1)}
    copy = json_tensors.copied(value)
    value["a"].append(4)
    value["a"][1].add(5)
    value["b"][1].append(6)
    value["c"]["x"] = 2
    tensor.add_(1)
    assert copy == {"a": [1, {2}], "b": (torch.zeros(1), [3]), "c": Counter(x=1)}


def test_what_a_loss_remembers_is_not_copied_in_any_dict() -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    for value in ({"a": loss}, OrderedDict(a=loss), defaultdict(list, a=[loss])):
        copy = json_tensors.copied(value)
        found = copy["a"][0] if type(value) is defaultdict else copy["a"]
        assert (type(copy), float(found), found.requires_grad) == (type(value), 1.0, False)


def test_the_canonical_form_does_not_know_the_order_of_dicts() -> None:
    def form(value: object) -> object:
        return json_tensors.canonical(json_tensors.encode(value, "it", []))

    assert form({"a": 1, "b": [{"c": 2, "d": 3}]}) == form({"b": [{"d": 3, "c": 2}], "a": 1})
    assert form([1, 2]) != form([2, 1])
    assert form({"a": 1}) != form({"a": 2})
    assert form((1,)) != form([1])
