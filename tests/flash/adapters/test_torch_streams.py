"""Streams and captured graphs, on a fake driver whose GPU is the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from device_arrays import interpreting
from fake_driver import FakeDriver

import flash
from flash import functions
from ptxgen.errors import LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend


@pytest.fixture(scope="module")
def ours(torch: Any) -> Any:
    import flash.adapters.torch

    torch.manual_seed(0)
    return flash.adapters.torch


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The driver of the process's GPU; it is too old for every assembler, so that kernels stay PTX."""
    made = interpreting(FakeDriver(version=1000))
    backend, cache = CudaBackend(made), ModuleCache(None)
    monkeypatch.setattr("flash.kernel.gpu_of", lambda *_: backend)
    monkeypatch.setattr("flash.kernel.cache_of", lambda *_: cache)
    functions._kernel.cache_clear()
    yield made
    functions._kernel.cache_clear()


class Stream:
    """A stream as torch shows it."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@pytest.mark.parametrize("through", ["a call", "the dispatcher"])
def test_the_stream_of_a_call_is_that_of_the_launch(
    ours: Any, torch: Any, driver: FakeDriver, through: str
) -> None:
    q = torch.randn(1, 2, 5, 8)
    handle = driver.make_stream(0)
    given = {"backend": "cuda", "causal": True, "return_lse": True}
    with torch.autograd.profiler.profile(enabled=through == "the dispatcher"):
        found, lse = ours.attention(q, q, q, stream=Stream(handle), **given)
        ours.attention(q, q, q, stream=handle, **given)
        ours.attention(q, q, q, **given)
    assert [launch.stream for launch in driver.launches] == [handle, handle, 0]
    wanted, sums = flash.attention(q, q, q, causal=True, return_lse=True, backend="cpu")
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(lse, sums, atol=2e-6, rtol=2e-6)


def test_gradients_after_a_forward_pass_on_a_gpu(ours: Any, torch: Any, driver: FakeDriver) -> None:
    """The tensors are on the host, so the backward pass is the CPU's: with the same dropout."""
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    found, wanted = (
        torch.autograd.grad(
            ours.attention(q, q, q, dropout=0.5, dropout_seed=3, backend=b).square().sum(), q
        )[0]
        for b in ("cuda", "cpu")
    )
    assert len(driver.launches) == 1
    torch.testing.assert_close(found, wanted, atol=5e-6, rtol=5e-6)


def test_dropout_in_a_captured_graph_needs_a_seed(
    ours: Any, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(LaunchError) as caught:
        ours.attention(q, q, q, dropout=0.5)
    assert str(caught.value) == (
        "attention: dropout in a captured CUDA graph needs a dropout_seed: it is a number of the launch, so "
        "that each replay drops the same weights; give it, or capture without dropout"
    )
    assert ours.attention(q, q, q, dropout=0.5, dropout_seed=3, backend="cpu").shape == q.shape
