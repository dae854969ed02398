"""Traced calls by XLA's FFI. There is no GPU: XLA calls the handler in programs for the CPU, whose arrays
are memory of the fake driver, and the interpreter runs the kernels on them.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver, Memory
from jax_arrays import BATCH, DTYPES, HEADS, SEQ_K, SEQ_Q, Array, bits, matrices, normal

from flash import functions
from flash.gradients import functions as gradient_functions
from ptxgen.interpreter.machine.arena import FIRST_ADDRESS
from ptxgen.runtime.cuda import CudaBackend


class Programs:
    """Programs for the CPU that call the handler as programs for a GPU do: `frames` are its calls."""

    def __init__(self) -> None:
        self.driver = interpreting(FakeDriver(FakeDevice(sm=80)))
        self.stream = self.driver.make_stream()
        self.frames: list[Any] = []

    def execute(self, frame: Any) -> None:
        from flash.adapters.jax import gpu

        self.frames.append(frame)
        places = []
        for x in (*frame.arguments, *frame.results):
            nbytes = math.prod(x.shape) * np.dtype(x.dtype).itemsize
            places += [(x.pointer, x.pointer + nbytes)] if nbytes else []
        own = {start: Memory(start, bytes_at(start, end), 0) for start, end in joined(places)}
        self.driver.memory |= own
        try:
            gpu.execute(frame)
        finally:
            for start in own:
                del self.driver.memory[start]


def joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of addresses, those next to each other in one: XLA's arrays have no gaps between them."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if result and start <= result[-1][1] + 256:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def bytes_at(start: int, end: int) -> Array:
    memory: Any = (ctypes.c_uint8 * (end - start)).from_address(start)
    return np.frombuffer(memory, np.uint8)


@pytest.fixture
def programs(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:  # jax is needed
    from jax.interpreters import mlir

    from flash.adapters.jax import functions as adapted
    from flash.adapters.jax import gpu, xla_ffi

    if np.empty(2048, np.uint8).ctypes.data < FIRST_ADDRESS:
        pytest.skip("this Python is no PIE: XLA's arrays have addresses that are none of a GPU's memory")
    result = Programs()
    backend = CudaBackend(result.driver)
    without_assembler(monkeypatch)
    monkeypatch.setattr("ptxgen.runtime.caller_arguments.cuda_backend", lambda: backend)
    monkeypatch.setattr(gpu, "cuda_backend", lambda: backend)
    monkeypatch.setattr(xla_ffi, "stream_of", lambda _: result.stream)
    handler = xla_ffi.handler(result.execute)
    _KEPT.append(handler)
    monkeypatch.setattr(gpu, "TARGET", f"{gpu.TARGET}_{len(_KEPT)}")
    xla_ffi.register(gpu.TARGET, handler, "cpu")
    mlir.register_lowering(adapted._WORK, adapted._by_ffi, platform="cpu")
    kept = functions._kernel, gradient_functions._kernel  # kernels keep their driver
    for kernels in kept:
        kernels.cache_clear()
    yield result
    for kernels in kept:
        kernels.cache_clear()
    mlir.register_lowering(
        adapted._WORK, mlir.lower_fun(adapted._by_callback, multiple_results=True), platform="cpu"
    )


_KEPT: list[Any] = []  # XLA may call a handler as long as the process lives


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "bshd": ({}, {"causal": True, "layout": "bshd"}),
    "mask": ({"mask": normal(BATCH, 1, SEQ_Q, SEQ_K) > -0.5}, {}),
    "bias": ({"bias": normal(HEADS, 1, SEQ_K)}, {"softcap": 2.0}),
    "dropout": ({"dropout_seed": np.int32(3)}, {"dropout": 0.25}),
    "aux": ({"aux": {"t": normal(HEADS)}}, {"score_mod": lambda score, b, h, i, j, t: score * t[h]}),
}


SLOW = [("plain", "f32"), ("bshd", "f32"), ("dropout", "f32"), ("plain", "f16")]
NIGHTLY = [("mask", "f32"), ("aux", "f32")]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bias", "bf16"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY),
    ],
)
def test_a_call_by_the_ffi_is_the_call(name: str, dtype: str, jax: ModuleType, programs: Programs) -> None:
    """The bits are those of the kernel outside of jit."""
    from flash.adapters.jax import attention

    more, settings = CASES[name]
    arguments = {**matrices(DTYPES[dtype]), **more}
    if settings.get("layout") == "bshd":
        arguments = {n: x.swapaxes(1, 2) for n, x in arguments.items()}
    there = jax.tree.map(jax.numpy.asarray, arguments)
    eager = attention(**there, return_lse=True, backend="interpreter", **settings)
    assert not programs.frames
    settings = {**settings, "backend": "cuda"}
    assert bits(jax.jit(lambda x: attention(**x, return_lse=True, **settings))(there)) == bits(eager)
    (frame,) = programs.frames
    assert (arguments["q"].shape, np.dtype(DTYPES[dtype]).name) in [x[1:] for x in frame.arguments]
    assert [launch.stream for launch in programs.driver.launches] == [programs.stream]
    assert "cuMemAlloc" not in programs.driver.names()


def gradients_of(jax: ModuleType, call: Any) -> Any:
    """The function of the gradients, of a sum over out and lse, of all arrays that `call` is given."""

    def loss(given: dict[str, Any]) -> Any:
        out, lse = call(given)
        return (out**2).sum() + jax.numpy.sin(lse).sum()

    return jax.grad(loss)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", pytest.param("f32", marks=pytest.mark.nightly)])
def test_gradients_by_the_ffi_are_those_of_the_kernels(
    dtype: str, jax: ModuleType, programs: Programs
) -> None:
    """In a compiled program all is launched on its stream: the forward kernel, and those of gradients."""
    from flash.adapters.jax import attention

    arguments = jax.tree.map(jax.numpy.asarray, {**matrices(DTYPES[dtype]), "sink": normal(HEADS)})

    def call(backend: Any) -> Any:
        return lambda x: attention(**x, causal=True, return_lse=True, backend=backend)

    wanted = gradients_of(jax, call("interpreter"))(arguments)
    result = jax.jit(gradients_of(jax, call("cuda")))(arguments)
    assert bits(result.values()) == bits(wanted.values())
    in_program = [launch for launch in programs.driver.launches if launch.stream == programs.stream]
    assert ["gradient" in launch.entry or launch.entry.split("_")[0] for launch in in_program] == [
        "attention",
        True,
        True,
        "sum",
    ]
    assert len(programs.frames) == 2


@pytest.mark.nightly
def test_gradients_of_packed_sequences_by_the_ffi(jax: ModuleType, programs: Programs) -> None:
    """Rows of no sequence have gradient 0."""
    from flash.adapters.jax import attention_varlen

    arguments = {name: jax.numpy.asarray(normal(9, 2, 8) * n) for n, name in enumerate("qkv", 1)}
    starts = jax.numpy.asarray([1, 4, 8], jax.numpy.int32)

    def call(backend: Any) -> Any:
        how: dict[str, Any] = {"max_seqlen_q": 4, "return_lse": True, "backend": backend}

        def rows(x: Any) -> Any:
            out, lse = attention_varlen(**x, cu_seqlens_q=starts, cu_seqlens_k=starts, **how)
            return out, lse[:, 1:8]

        return rows

    wanted = gradients_of(jax, call("interpreter"))(arguments)
    result = jax.jit(gradients_of(jax, call("cuda")))(arguments)
    assert bits(result.values()) == bits(wanted.values())
    assert all(not np.asarray(x)[[0, 8]].any() for x in result.values())
    assert programs.driver.launches


@pytest.mark.nightly
def test_mapped_gradients_are_computed_one_by_one(jax: ModuleType, programs: Programs) -> None:
    from flash.adapters.jax import attention

    arrays = jax.tree.map(jax.numpy.asarray, matrices(np.float16))
    queries = jax.numpy.stack([arrays["q"], arrays["q"] * 2])

    def gradient(q: Any, backend: Any) -> Any:
        return jax.grad(lambda q: attention(q, arrays["k"], arrays["v"], backend=backend).sum())(q)

    result = jax.jit(jax.vmap(lambda q: gradient(q, "cuda")))(queries)
    assert bits(result) == bits(gradient(q, "interpreter") for q in queries)
    assert len(programs.driver.launches) == 1 + 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (1, 2, 0, 8), (2, 3, 8)])
def test_calls_without_elements_and_without_heads(
    shape: tuple[int, ...], jax: ModuleType, programs: Programs
) -> None:
    from flash.adapters.jax import attention

    x = jax.numpy.asarray(normal(*shape))
    result = jax.jit(lambda x: attention(x, x, x, backend="cuda"))(x)
    assert bits([result]) == bits([attention(x, x, x, backend="interpreter")])
    assert len(programs.driver.launches) == (0 not in shape)


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "launches"), [(0.0, 1), (0.25, 4)])
def test_mapped_calls(dropout: float, launches: int, jax: ModuleType, programs: Programs) -> None:
    """One call for all mapped items, or one for each where they know their place in the batch."""
    from flash.adapters.jax import attention

    arrays = matrices()
    queries = np.stack([np.stack([arrays["q"] * (i + j) for j in range(2)]) for i in range(2)])
    how: dict[str, Any] = {"dropout": dropout, "dropout_seed": 5} if dropout else {}

    def several(q: Any, backend: Any) -> Any:
        def call(q: Any) -> Any:
            return attention(q, arrays["k"], arrays["v"], return_lse=True, backend=backend, **how)

        return jax.vmap(jax.vmap(call))(q)

    result = jax.jit(lambda q: several(q, "cuda"))(queries)
    assert len(programs.driver.launches) == launches
    assert bits(result) == bits(several(queries, "interpreter"))
    assert len(programs.driver.launches) == launches
    one = attention(queries[1, 0], arrays["k"], arrays["v"], return_lse=True, backend="cpu", **how)
    for got, wanted in zip(result, one, strict=True):
        np.testing.assert_allclose(got[1, 0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rows_of_no_sequence_are_filled(jax: ModuleType, programs: Programs) -> None:
    from flash.adapters.jax import attention_varlen

    q, k, v = (jax.numpy.asarray(normal(9, 2, 8)) * n for n in (1, 2, 3))
    starts = jax.numpy.asarray([1, 4, 8], jax.numpy.int32)
    used = jax.numpy.asarray([2, 3], jax.numpy.int32)

    def call(q: Any, k: Any, v: Any, backend: Any) -> Any:
        how: dict[str, Any] = {"max_seqlen_q": 4, "return_lse": True, "backend": backend}
        return attention_varlen(q, k, v, starts, starts, seqused_q=used, **how)

    out, lse = jax.jit(lambda q, k, v: call(q, k, v, "cuda"))(q, k, v)
    assert len(programs.driver.launches) == 1
    assert bits((out, lse)) == bits(call(q, k, v, "interpreter"))
    nowhere = [0, 3, 7, 8]
    assert not np.asarray(out)[nowhere].any()
    assert np.isneginf(np.asarray(lse)[:, nowhere]).all()


@pytest.mark.nightly
def test_keys_in_pages(jax: ModuleType, programs: Programs) -> None:
    from flash.adapters.jax import attention_varlen

    arrays = [jax.numpy.asarray(x) for x in (normal(5, 2, 8), normal(4, 3, 1, 8), 2 * normal(4, 3, 1, 8))]
    starts, used = (jax.numpy.asarray(x, jax.numpy.int32) for x in ([0, 2, 5], [4, 6]))
    how: dict[str, Any] = {"block_table": jax.numpy.asarray([[3, 1], [0, 2]], jax.numpy.int32)}
    how |= {"seqused_k": used, "max_seqlen_q": 3, "causal": True}

    def call(backend: Any) -> Any:
        return lambda *x: attention_varlen(*x, starts, **how, backend=backend)

    result = jax.jit(call("cuda"))(*arrays)
    assert len(programs.driver.launches) == 1
    assert bits([result]) == bits([call("interpreter")(*arrays)])


def failed(jax: ModuleType, call: Any, *arrays: Any) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(call(*arrays))
    return f"{caught.value}"


def test_errors_in_a_call_are_raised_by_the_program(jax: ModuleType, programs: Programs) -> None:
    from flash.adapters.jax import attention_varlen

    x = jax.numpy.asarray(normal(6, 2, 8))
    starts = jax.numpy.asarray([0, 2, 6], jax.numpy.int32)
    call = jax.jit(lambda starts: attention_varlen(x, x, x, starts, starts, backend="cuda"))
    assert failed(jax, call, starts).startswith("INVALID_ARGUMENT: attention_varlen: max_seqlen_q must be")
    bounded = jax.jit(lambda s: attention_varlen(x, x, x, s, s, backend="cuda", max_seqlen_q=4))
    programs.driver.fail("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE")
    message = failed(jax, bounded, starts)
    assert message.startswith("INTERNAL: BackendError: cannot launch")
    assert "cuLaunchKernel returned CUDA_ERROR_INVALID_VALUE" in message
    assert bounded(starts).shape == x.shape


def test_a_call_of_another_process_is_refused(
    jax: ModuleType, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flash.adapters.jax import attention, gpu

    x = jax.numpy.asarray(normal(1, 1, 3, 8))
    call = jax.jit(lambda x: attention(x, x, x, backend="cuda")).lower(x).compile()
    monkeypatch.setattr(gpu, "_WORKS", {})
    assert failed(jax, call, x).startswith(
        "INVALID_ARGUMENT: attention: the program was traced by another process; trace it in this one, "
        "because the handler of its calls needs what was traced"
    )


@pytest.mark.slow
def test_a_call_lives_as_long_as_its_programs(jax: ModuleType, programs: Programs) -> None:
    from flash.adapters.jax import attention, gpu

    x = jax.numpy.asarray(normal(1, 1, 3, 8))
    program = jax.jit(lambda x: attention(x, x, x, backend="cuda")).lower(x).compile()
    token = max(gpu._WORKS, key=list(gpu._WORKS).index)
    jax.clear_caches()
    gc.collect()
    assert token in gpu._WORKS
    program(x)
    (frame,) = programs.frames
    assert frame.attributes == {"token": token}
    del program
    gc.collect()
    assert token not in gpu._WORKS


def test_the_stream_is_asked_from_xla(jax: ModuleType) -> None:
    """On the CPU XLA has none and says so."""
    from flash.adapters.jax import xla_ffi

    called: list[Any] = []
    handler = xla_ffi.handler(called.append)
    _KEPT.append(handler)
    xla_ffi.register("ptxgen_test_stream", handler, "cpu")
    of = jax.ShapeDtypeStruct((), np.float32)
    message = failed(jax, jax.jit(lambda: jax.ffi.ffi_call("ptxgen_test_stream", of)()))
    assert message.startswith("INTERNAL: RuntimeError: XLA gives no stream: ")
    assert not called

    api = xla_ffi._Api()
    asked: list[int] = []

    def get(given: Any) -> None:
        asked.append(given.contents.context)
        given.contents.stream = 0x1230

    kinds: dict[str, Any] = dict(xla_ffi._Api._fields_)
    api.stream_get = kinds["stream_get"](get)
    assert xla_ffi.stream_of(xla_ffi._Frame(api=ctypes.pointer(api), context=7)) == 0x1230
    assert asked == [7]


def test_types_have_numpys_names(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA hands the handler an array of each type that it knows."""
    from flash.adapters.jax import xla_ffi

    monkeypatch.setattr(xla_ffi, "stream_of", lambda _: 0)
    frames: list[Any] = []
    handler = xla_ffi.handler(frames.append)
    _KEPT.append(handler)
    xla_ffi.register("ptxgen_test_types", handler, "cpu")
    types = {np.dtype(name) for name in xla_ffi._DTYPES.values()}
    signed = {np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    assert types == {*signed, *map(np.dtype, ("bool", "float16", "float32", "float64", ml_dtypes.bfloat16))}
    with jax.enable_x64(True):
        arrays = [jax.numpy.zeros(rank + 1, dtype) for rank, dtype in enumerate(sorted(types, key=str))]
        done = jax.ShapeDtypeStruct((), np.float32)
        call = jax.jit(lambda *x: jax.ffi.ffi_call("ptxgen_test_types", done)(*x))
        jax.block_until_ready(call(*arrays))
    [frame] = frames
    assert [(x.shape, x.dtype) for x in frame.arguments] == [(x.shape, x.dtype.name) for x in arrays]


def test_types_without_a_name_are_refused(jax: ModuleType) -> None:
    from flash.adapters.jax import xla_ffi

    handler = xla_ffi.handler(lambda _: None)
    _KEPT.append(handler)
    xla_ffi.register("ptxgen_test_type", handler, "cpu")
    call = jax.jit(lambda x: jax.ffi.ffi_call("ptxgen_test_type", jax.ShapeDtypeStruct((), np.float32))(x))
    assert failed(jax, call, np.complex64(1)).startswith(
        "INVALID_ARGUMENT: arrays of XLA's type 15 are not known; use bool, int8, "
    )


def test_programs_for_a_gpu_call_the_handler(jax: ModuleType) -> None:
    from flash.adapters.jax import attention, gpu

    arrays = jax.tree.map(jax.numpy.asarray, matrices())
    traced = jax.jit(lambda x: attention(**x)).trace(arrays)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert f"custom_call @{gpu.TARGET}(" in text
    assert gpu.TARGET not in traced.lower(lowering_platforms=("cpu",)).as_text()
