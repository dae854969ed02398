"""The backend "compiled" by its name: what it computes, and what is said of it and without Numba."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flash
from ptxgen.errors import BackendError
from ptxgen.runtime import backend as names
from ptxgen.runtime.settings import backend_setting

WITHOUT = (
    "backend 'compiled' needs Numba, which cannot be imported (import of numba halted; None in sys.modules); "
    "pip install 'ptxgen[compiled]', or use backend='cpu'"
)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PTXGEN_BACKEND is read, and Numba looked for, anew."""
    monkeypatch.delenv("PTXGEN_BACKEND", raising=False)
    kept = backend_setting, names._why_not_compiled
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()


@pytest.fixture
def runs(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the compiled loops that ran."""
    result: list[str] = []

    def counted(name: str) -> Any:
        loop = getattr(compiled, name)
        return lambda *arrays: (result.append(name), loop(*arrays))[1]

    # Not in the module itself, where Numba would find the lambdas when it compiles a loop that calls another.
    forward = ("weights", "weights_of_seen", "products", "sums", "attend")
    backward = ("weights_again", "weights_again_of_seen", "score_gradients", "score_gradients_of_seen")
    names = (*forward, *backward)
    loops = SimpleNamespace(**{name: counted(name) for name in names})
    monkeypatch.setattr("flash.cpu.compiled.loops", loops)
    return result


def rows(*shape: int, dtype: Any = np.float32, count: int = 3) -> Any:
    rng = np.random.default_rng(shape)
    return rng.standard_normal((count, *shape), np.float32).astype(dtype)


def assert_alike(one: Any, other: Any) -> None:
    """Results of f32 arithmetic, with roundings in other orders; one of 16 bits may also round otherwise."""
    assert one.dtype == other.dtype
    atol = 1e-6 if one.dtype == np.float32 else 2**-8
    np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), atol=atol)


def test_attention_and_packed_sequences(runs: list[str]) -> None:
    q, k, v = rows(2, 4, 20, 16)
    result, lse = flash.attention(q, k, v, causal=True, return_lse=True, backend="compiled")
    wanted, wanted_lse = flash.attention(q, k, v, causal=True, return_lse=True, backend="cpu")
    assert_alike(result, wanted)
    assert_alike(lse, wanted_lse)
    assert set(runs) == {"weights_of_seen"}
    runs.clear()
    q, k, v = rows(30, 4, 16, dtype=ml_dtypes.bfloat16)
    offsets = np.array([0, 4, 10, 30], np.int32)
    result, wanted = (
        flash.attention_varlen(q, k, v, offsets, offsets, backend=name) for name in ("compiled", "cpu")
    )
    assert_alike(result, wanted)
    assert set(runs) == {"weights", "attend"}  # many queries, and few


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
def test_a_kv_cache(dtype: str, page_size: int | None, runs: list[str]) -> None:
    results = {}
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.float32  # which kernels refuse for e4m3
    for name in ("compiled", "cpu"):
        cache: Any = flash.KVCache(1, 2, 2, 16, 80, dtype=dtype, page_size=page_size, backend=name)
        q, k, v = rows(2, 2, 40, 16, dtype=kind)
        flash.attention_with_kvcache(q, cache, k, v, layer=0)
        q, k, v = rows(2, 2, 1, 16, dtype=kind)
        results[name] = flash.attention_with_kvcache(q, cache, k, v, layer=0)
        assert bool(runs) == (name == "compiled")
        runs.clear()
        other = "cpu" if name == "compiled" else "compiled"
        again = flash.attention_with_kvcache(q, cache, layer=0, backend=other)
        assert_alike(again, results[name])
        assert bool(runs) == (other == "compiled")
        runs.clear()
    assert_alike(results["compiled"], results["cpu"])


def test_a_decode_kernel_writes_new_rows_and_attends(runs: list[str]) -> None:
    kernel = flash.DecodeKernel(flash.AttentionConfig(16, dtype="bf16", causal=True))
    q, new_k, new_v = rows(1, 4, 1, 16, dtype=ml_dtypes.bfloat16)
    results = []
    for name in ("compiled", "cpu"):
        k, v = rows(1, 4, 30, 16, dtype=ml_dtypes.bfloat16, count=2)
        used = np.array([25], np.int32)
        results.append(kernel.launch(q, k, v, new_k, new_v, seqused_k=used, backend=name))
        np.testing.assert_array_equal(k[:, :, 24], new_k[:, :, 0])
    assert_alike(*results)
    assert runs == ["attend"]


def test_a_decode_kernel_takes_narrow_caches_that_kernels_do_not_take(runs: list[str]) -> None:
    q = rows(1, 2, 1, 12, count=1)[0]
    k, v = rows(1, 2, 30, 12, dtype=ml_dtypes.float8_e4m3fn, count=2)
    kernel, used = flash.DecodeKernel(flash.AttentionConfig(12)), np.array([25], np.int32)
    scales = {name: np.ones(2, np.float32) for name in ("k_scale", "v_scale")}
    results = [kernel.launch(q, k, v, seqused_k=used, backend=name, **scales) for name in ("compiled", "cpu")]
    assert_alike(*results)
    assert runs == ["attend"]


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal: bool, runs: list[str]) -> None:
    q, k, v = rows(1, 2, 9, 8)
    out, lse = flash.attention(q, k, v, causal=causal, return_lse=True, backend="cpu")
    results = [
        flash.attention_backward(out, q, k, v, out, lse, causal=causal, backend=name)
        for name in ("compiled", "cpu")
    ]
    for one, other in zip(*(result[:3] for result in results), strict=True):
        assert_alike(one, other)
    names = ("weights_again", "score_gradients")
    assert set(runs) == {f"{name}_of_seen" if causal else name for name in names}


@pytest.mark.usefixtures("compiled")
def test_merges_are_those_of_numpy() -> None:
    q, k, v = rows(1, 2, 9, 8)
    out, lse = flash.attention(q, k, v, return_lse=True, backend="cpu")
    result, wanted = (
        flash.merge_partials([out, out], [lse, lse], backend=name) for name in ("compiled", "cpu")
    )
    np.testing.assert_array_equal(result[0], wanted[0])


def test_the_environment_can_ask_for_it_and_explain_says_so(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_BACKEND", "compiled")
    q, k, v = rows(1, 2, 9, 8)
    flash.attention(q, k, v)
    assert runs == ["weights"]
    said = flash.AttentionKernel(flash.AttentionConfig(8)).explain(q, k, v).splitlines()
    assert said[0] == "backend:  compiled (PTXGEN_BACKEND is compiled)"
    assert "kernel:   none: numpy computes it, with loops that Numba compiles" in said


def test_auto_is_never_compiled(runs: list[str]) -> None:
    flash.attention(*rows(1, 2, 9, 8))
    assert not runs


@pytest.mark.parametrize("how", ["asked", "environment", "cache", "call", "merge", "decode"])
def test_without_numba_it_is_refused_before_anything_is_done(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    q, k, v = rows(1, 2, 9, 8)
    out = np.full_like(q, 7)
    cache = flash.KVCache(1, 1, 2, 8, 20)
    if how == "environment":
        monkeypatch.setenv("PTXGEN_BACKEND", "compiled")
    kernel = flash.DecodeKernel(flash.AttentionConfig(8))
    caller, call = {
        "asked": ("attention", lambda: flash.attention(q, k, v, out=out, backend="compiled")),
        "environment": ("attention", lambda: flash.attention(q, k, v, out=out)),
        "cache": ("KVCache", lambda: flash.KVCache(1, 1, 2, 8, 20, backend="compiled")),
        "call": (
            "attention_with_kvcache",
            lambda: flash.attention_with_kvcache(q, cache, k, v, layer=0, out=out, backend="compiled"),
        ),
        "merge": (
            "merge_partials",
            lambda: flash.merge_partials([q], [q[..., 0]], out=out, backend="compiled"),
        ),
        "decode": (
            "DecodeKernel.launch",
            lambda: kernel.launch(q, k, v, seqused_k=np.array([9], np.int32), out=out, backend="compiled"),
        ),
    }[how]
    with pytest.raises(BackendError) as caught:
        call()
    assert str(caught.value) == f"{caller}: {WITHOUT}"
    assert (out == 7).all()
    assert not cache.lengths.any()


def test_without_its_compiler_numba_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(config=SimpleNamespace(DISABLE_JIT=1)))
    with pytest.raises(BackendError) as caught:
        names.check_backend("compiled")
    assert str(caught.value) == (
        "backend 'compiled' needs Numba's compiler, which NUMBA_DISABLE_JIT turns off; unset it, or use "
        "backend='cpu'"
    )
