"""What the fork server leans on in torch: these fail when torch changes it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.numa import binding

from elastic_runtime.system import torch_private


def test_a_process_that_is_no_fork_has_not_lost_cuda() -> None:
    assert torch_private.cuda_is_lost() is False


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no CUDA")
def test_the_question_for_a_lost_cuda_exists() -> None:
    assert torch._C._cuda_isInBadFork() is False


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_processors_of_a_gpu(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    # The answer needs a GPU; that the question is put as torch wants it does not.
    given = {}

    def answer(**arguments: object) -> set[int]:
        given.update(arguments)
        return {3, 1}

    real = inspect.signature(binding._get_logical_cpus_to_bind_to)
    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", answer)
    assert torch_private.numa_cpus(2, mode) == [1, 3]
    real.bind(**given)
    assert given == {
        "gpu_index": 2,
        "numa_options": binding.NumaOptions(binding.AffinityMode(mode)),
    }
