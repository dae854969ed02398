"""Streams and captured graphs, on a fake driver whose GPU is the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device_arrays import TorchOnGpu, interpreting
from fake_driver import FakeDevice, FakeDriver
from gradient_calls import call_of, reference

import flash
from flash import functions
from flash.calls import backend as backend_choice
from flash.gradients import functions as gradient_functions
from flash.reference import attention_varlen_reference_gradients
from ptxgen.errors import LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """The driver of the process's GPU; it is too old for every assembler, so that kernels stay PTX."""
    built = interpreting(FakeDriver(FakeDevice(), FakeDevice(), version=1000))
    backend, cache = CudaBackend(built), ModuleCache(None)
    kept = (functions._kernel, gradient_functions._kernel)
    for module in ("flash.kernel", "flash.gradients.kernel"):
        monkeypatch.setattr(f"{module}.gpu_of", lambda *_: backend)
        monkeypatch.setattr(f"{module}.cache_of", lambda *_: cache)
    for kernels in kept:
        kernels.cache_clear()
    yield built
    for kernels in kept:
        kernels.cache_clear()


class Stream:
    """A stream as torch shows it."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@pytest.mark.slow
@pytest.mark.parametrize("through", ["a call", "the dispatcher"])
def test_the_stream_of_a_call_is_that_of_the_launch(
    ours: Any, torch: Any, driver: FakeDriver, through: str
) -> None:
    q = torch.randn(1, 2, 5, 8)
    handle = driver.make_stream(0)
    arguments = {"backend": "cuda", "causal": True, "return_lse": True}
    with torch.autograd.profiler.profile(enabled=through == "the dispatcher"):
        result, lse = ours.attention(q, q, q, stream=Stream(handle), **arguments)
        ours.attention(q, q, q, stream=handle, **arguments)
        ours.attention(q, q, q, **arguments)
    assert [launch.stream for launch in driver.launches] == [handle, handle, 0]
    wanted, sums = flash.attention(q, q, q, causal=True, return_lse=True, backend="cpu")
    torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(lse, sums, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("backend", "launches"), [pytest.param("cuda", 3, marks=pytest.mark.slow), ("auto", 1)]
)
def test_gradients_after_a_forward_pass_on_a_gpu(
    ours: Any, torch: Any, driver: FakeDriver, backend: str, launches: int
) -> None:
    """The tensors are on the host. "auto" is a GPU for results, and numpy for gradients; dropout is the
    same.
    """
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    result, wanted = (
        torch.autograd.grad(
            ours.attention(q, q, q, dropout=0.5, dropout_seed=3, backend=b).square().sum(), q
        )[0]
        for b in (backend, "cpu")
    )
    assert len(driver.launches) == launches
    torch.testing.assert_close(result, wanted, atol=5e-6, rtol=5e-6)


@pytest.mark.slow
def test_gradients_of_tensors_on_a_gpu(
    ours: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operator of the backward pass does with tensors on a GPU, without torch's part: kernels on
    the stream that is current for torch then.
    """
    from flash.adapters.torch.dense import _OPERATORS

    assert ours
    arrays = call_of(flash.AttentionConfig(8, causal=True, sink=True), sink=(sink := np.ones(2, np.float32)))
    torch = TorchOnGpu(driver, 1, monkeypatch)
    on_gpu = {name: torch.tensor(a) for name, a in {**arrays, "sink": sink}.items()}
    first = [on_gpu["dout"], None, on_gpu["out"], on_gpu["lse"], [True] * 3 + [False, False, False, True]]
    tensors = [on_gpu.get(name) for name in _OPERATORS._names]
    chosen: dict[str, Any] = dict.fromkeys(_OPERATORS._settings.names)
    chosen |= {"causal": "bottom_right", "layout": "bhsd", "dropout": 0.0, "score_mod": "", "mask_mod": ""}
    chosen |= {"return_lse": True, "backend": "auto", "stream": driver.make_stream(1), "deterministic": True}
    *result, of_aux = _OPERATORS._gradients(*first, *tensors, None, *chosen.values())
    assert of_aux == []
    assert {(launch.stream, launch.ordinal) for launch in driver.launches} == {(torch.stream, 1)}
    assert [launch.entry.split("_")[2] for launch in driver.launches] == ["queries", "keys", "f32"]
    right = reference(arrays, causal=True, sink=sink)
    for got, exact in zip(
        (*result[:3], result[-1]), (right.dq, right.dk, right.dv, right.arrays["sink"]), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), exact, atol=1e-5, rtol=1e-5)
    assert [x.shape for x in result[3:6]] == [(0,)] * 3


@pytest.mark.parametrize(("given", "bound"), [(None, 12), pytest.param(7, 7, marks=pytest.mark.slow)])
def test_gradients_of_packed_tensors_on_a_gpu(
    ours: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, given: int | None, bound: int
) -> None:
    """Without a number of keys the kernels are told one that no sequence exceeds: the rows of k."""
    from flash.adapters.torch.varlen import _OPERATORS

    assert ours
    rng = np.random.default_rng(3)
    q, dout = rng.standard_normal((2, 9, 2, 8), dtype=np.float32)
    k, v = rng.standard_normal((2, 12, 1, 8), dtype=np.float32)
    ends = {"cu_seqlens_q": np.array([0, 4, 9], np.int32), "cu_seqlens_k": np.array([0, 5, 12], np.int32)}
    out, lse = flash.attention_varlen(q, k, v, **ends, return_lse=True, backend="cpu")
    torch = TorchOnGpu(driver, 1, monkeypatch)
    on_gpu = {name: torch.tensor(a) for name, a in {"q": q, "k": k, "v": v, **ends}.items()}
    first = [*map(torch.tensor, (dout,)), None, *map(torch.tensor, (out, lse)), [True] * 3 + [False] * 4]
    chosen: dict[str, Any] = dict.fromkeys(_OPERATORS._settings.names)
    chosen |= {"causal": "", "dropout": 0.0, "score_mod": "", "mask_mod": "", "backend": "auto"}
    chosen |= {"max_seqlen_q": 5, "max_seqlen_k": given, "kv_layout": "NHD", "deterministic": True}
    result = _OPERATORS._gradients(*first, *map(on_gpu.get, _OPERATORS._names), None, *chosen.values())
    assert [launch.values["max_seqlen_k"] for launch in driver.launches if "max_seqlen_k" in launch.values]
    assert {x.values.get("max_seqlen_k", bound) for x in driver.launches} == {bound}
    exact = attention_varlen_reference_gradients(dout, q, k, v, **ends)
    for got, right in zip(result[:3], (exact.dq, exact.dk, exact.dv), strict=True):
        np.testing.assert_allclose(got.numpy(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("asked", "precision", "setting", "found"),
    [
        ("auto", None, "auto", "cpu"),
        ("auto", "f32_grade", "auto", "cpu"),
        ("auto", "tf32", "auto", "auto"),
        ("auto", None, "interpreter", "auto"),
        ("cuda", None, "auto", "cuda"),
    ],
)
def test_the_backend_of_gradients_of_the_host(
    asked: Any, precision: Any, setting: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PTXGEN_BACKEND says is left to the call, and so is tf32, of which LSE has to be, too."""
    monkeypatch.setattr(backend_choice, "backend_setting", lambda: setting)
    assert backend_choice.for_gradients_of_host(asked, precision) == found


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
