"""Parameters are called what their modules call them."""

from __future__ import annotations

import torch

from elastic_runtime.checkpoint.entries.parameter_names import ParameterNames


def test_a_name_has_that_of_the_entry_in_front() -> None:
    one, two = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    names = ParameterNames({"a": one, "b": two, "count": 3})
    stranger = torch.nn.Parameter(torch.ones(1))
    assert names.of([two.weight, one.bias, stranger]) == ["b.weight", "a.bias", ""]


def test_parameters_that_come_later_are_found() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    names = ParameterNames({"model": model})
    assert names.of([model[0].weight]) == ["model.0.weight"]
    model.append(torch.nn.Linear(1, 1))
    assert names.of([model[1].weight]) == ["model.1.weight"]
