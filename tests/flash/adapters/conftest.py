from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

REGISTERED = ("ptxgen", "ptxgen_cpu", "ptxgen_interpreter", "ptxgen_interpreter_non_deterministic", "mine")


@pytest.fixture(scope="module")
def ours(torch: ModuleType) -> ModuleType:
    """The adapter of PyTorch, with the same random numbers for each module of tests."""
    torch.manual_seed(0)
    return importlib.import_module("flash.adapters.torch")


@pytest.fixture
def adapter(transformers: ModuleType) -> Iterator[ModuleType]:
    """The adapter, with nothing registered afterwards. The models are too small for torch's threads,
    which wait for each other longer than they compute.
    """
    import torch

    import flash.adapters.transformers as found

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield found
    torch.set_num_threads(threads)
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        for name in REGISTERED:
            registry._global_mapping.pop(name, None)
