from __future__ import annotations

import contextlib
import copy
import functools
import gc
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device_arrays import (
    CudaArray,
    TensorOnGpu,
    TorchOnGpu,
    interpreting,
    kernel_on,
    on_device,
    without_assembler,
)
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate, rounded_normal

import flash
from flash import functions as functions_module
from flash.calls.gpu import Launcher
from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import build, proved_build
from flash.error_bound import arithmetic_of
from flash.host.caller import LAUNCH
from flash.host.results import DeviceArray
from flash.kernel import AttentionKernel
from flash.launch.checks import check
from flash.launch.forward import Forward
from flash.operands.dtypes import BF16, DTYPES, F16, F32, INPUT_DTYPES, DType
from flash.problem.config import AttentionConfig
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import host_array, view
from ptxgen.check.prove.verdicts import UNKNOWN
from ptxgen.errors import BackendError, ConfigError, LaunchError, PoisonedContextError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import backend_setting

pytestmark = pytest.mark.judged

Make = Callable[[AttentionConfig], AttentionKernel]
CONFIG = AttentionConfig(head_dim=8, tile=16, block_q=16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
# Kernels of bf16 are those of f16 but for a type.
INTERPRETED = [pytest.param(t, id=n, marks=[pytest.mark.slow] * (t is BF16)) for n, t in DTYPES.items()]
EVERY_INTERPRETED = pytest.mark.parametrize("dtype", INTERPRETED)
EVERY_WAY = pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        pytest.param(backend, t, id=f"{backend}-{n}", marks=[pytest.mark.slow] * (of and t is BF16))
        for of, backend in enumerate(("cpu", "interpreter"))
        for n, t in DTYPES.items()
    ],
)
COPIES_AND_LAUNCHES = {"cuMemAlloc", "cuMemcpyHtoDAsync", "cuModuleLoadDataEx", "cuLaunchKernel"}


def problem(
    batch: int = 1,
    heads: int = 2,
    seq_q: int = 5,
    seq_k: int = 9,
    d: int = 8,
    kv_heads: int = 2,
    dtype: DType = F32,
) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    return (
        rounded_normal(rng, (batch, heads, seq_q, d), dtype.numpy),
        rounded_normal(rng, (batch, kv_heads, seq_k, d), dtype.numpy),
        rounded_normal(rng, (batch, kv_heads, seq_k, d), dtype.numpy),
    )


def of_torch(torch: ModuleType, array: np.ndarray[Any, Any]) -> Any:
    """The array as a tensor, which torch itself makes of no bfloat16."""
    tensor = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    host_array(view(tensor, "tensor"))[...] = array
    return tensor


def of_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    return host_array(view(tensor, "tensor"))


class Theirs:
    """An array of a library that reads DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    def __array_namespace__(self) -> SimpleNamespace:
        return SimpleNamespace(asarray=Theirs, from_dlpack=Theirs)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No assembler, so that the fake GPU gets the text; and PTXGEN_BACKEND is read anew."""
    without_assembler(monkeypatch)
    monkeypatch.delenv("PTXGEN_BACKEND", raising=False)
    backend_setting.cache_clear()
    yield
    backend_setting.cache_clear()


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(FakeDevice(), FakeDevice())


@pytest.fixture
def make(driver: FakeDriver) -> Make:
    return functools.partial(kernel_on, driver)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    backend = CudaBackend(SimpleNamespace())
    monkeypatch.setattr(backend, "why_unavailable", lambda: "the driver lists no device")
    return backend


def fetch(driver: FakeDriver, array: DeviceArray) -> np.ndarray[Any, Any]:
    return driver.fetch(array.pointer, np.empty(array.shape, array.dtype))


# ------------------------------------------------------------------------------- the CPU


def config_of(dtype: DType) -> AttentionConfig:
    return CONFIG if dtype is F32 else AttentionConfig(8, dtype=dtype.name, tile=16, block_q=32)


@EVERY_WAY
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_results_are_arrays_of_the_library_of_the_inputs(
    library: str, backend: str, dtype: DType, request: pytest.FixtureRequest
) -> None:
    of: Any = np if library == "numpy" else request.getfixturevalue(library)
    convert, kind, names = {
        "numpy": lambda: (np.asarray, np.ndarray, (dtype.numpy, np.float32)),
        "torch": lambda: (
            functools.partial(of_torch, of),
            of.Tensor,
            (getattr(of, dtype.array_name), of.float32),
        ),
        "jax": lambda: (of.numpy.asarray, of.Array, (dtype.numpy, np.float32)),
    }[library]()
    arrays = problem(seq_q=21, seq_k=39, dtype=dtype)
    arguments = [convert(a) for a in arrays]
    if library == "torch":
        arguments[0].requires_grad_()
    kernel = AttentionKernel(config_of(dtype))
    with of.no_grad() if library == "torch" else contextlib.nullcontext():
        result = kernel.launch(*arguments, backend=backend, return_lse=True)
    assert all(isinstance(a, kind) for a in result)
    assert tuple(a.dtype for a in result) == names
    assert not getattr(result[0], "requires_grad", False)
    assert_attention_is_accurate(*map(of_numpy, result), *arrays)


def test_shapes_of_results_are_known_without_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = problem(batch=2)
    kernels = {
        "bhsd": (AttentionKernel(AttentionConfig(8, sink=True)), {"sink": np.ones(2, np.float32)}),
        "bshd": (AttentionKernel(AttentionConfig(8)), {"layout": "bshd"}),
        "rank 3": (AttentionKernel(AttentionConfig(8)), {}),
    }
    bshd, three = ([x.swapaxes(1, 2) for x in (q, k, v)], [x[0] for x in (q, k, v)])
    arrays = {"bhsd": [q, k, v], "bshd": bshd, "rank 3": three}
    every: Any = {"return_lse": True, "return_max_logit": True, "backend": "cpu"}
    built = {
        name: [x.shape for x in kernel.launch(*arrays[name], **how, **every)]
        for name, (kernel, how) in kernels.items()
    }
    monkeypatch.setattr(Forward, "run", None)  # would raise
    for name, (kernel, how) in kernels.items():
        assert list(kernel.result_shapes(*arrays[name], **how)) == built[name]
    ends = {"cu_seqlens_q": np.array([0, 2], np.int32), "cu_seqlens_k": np.array([0, 2], np.int32)}
    varlen = AttentionKernel(AttentionConfig(8, varlen=True))
    packed = [x.swapaxes(0, 1) for x in three]  # [total, heads, head_dim]
    assert varlen.result_shapes(*packed, **ends) == ((5, 2, 8), (2, 5), (1, 2))


WRONG_CALLS: dict[str, dict[str, Any]] = {
    "return_lse": {"return_lse": 1},
    "scale": {"softmax_scale": "1"},
    "seed": {"dropout_seed": 1},
    "operand": {"sink": np.ones(2, np.float32)},
    "layout": {"layout": "sbhd"},
    "lengths": {"max_seqlen_q": 3},
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_shapes_of_wrong_calls_are_refused_as_their_launches(name: str) -> None:
    kernel, arrays, said = AttentionKernel(CONFIG), problem(), []
    for function in (kernel.launch, kernel.result_shapes):
        with pytest.raises((LaunchError, TypeError)) as caught:
            function(*arrays, **WRONG_CALLS[name])
        said.append(str(caught.value))
    assert said[0] == said[1]


@EVERY_WAY
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_a_given_output_is_filled_and_returned(backend: str, dtype: DType, layout: str) -> None:
    swap = (0, 2, 1, 3) if layout == "bshd" else (0, 1, 2, 3)
    q, k, v = problem(dtype=dtype)
    out = np.full(q.transpose(swap).shape, np.nan, dtype.numpy)
    arguments = [a.transpose(swap) for a in (q, k, v)]
    kernel = AttentionKernel(config_of(dtype))
    assert kernel.launch(*arguments, out=out, backend=backend, layout=layout) is out
    assert_attention_is_accurate(out.transpose(swap), None, q, k, v)


@EVERY_WAY
def test_a_given_tensor_is_filled_through_its_strides(backend: str, dtype: DType, torch: ModuleType) -> None:
    q, k, v = problem(dtype=dtype)
    fused = of_torch(torch, np.concatenate([q, np.full_like(q, 7)], axis=3))
    out = fused[..., 8:]  # beside the queries, in the rows that they are in
    kernel = AttentionKernel(config_of(dtype))
    tensors = (fused[..., :8], of_torch(torch, k), of_torch(torch, v))
    assert kernel.launch(*tensors, out=out, backend=backend) is out
    assert_attention_is_accurate(of_numpy(out), None, q, k, v)
    assert torch.equal(fused[..., :8], of_torch(torch, q))


@EVERY_WAY
def test_three_dimensions_group_their_heads_too(backend: str, dtype: DType) -> None:
    q, k, v = problem(batch=2, heads=6, kv_heads=3, dtype=dtype)
    flat = [a.reshape(-1, *a.shape[2:]) for a in (q, k, v)]
    out, lse = AttentionKernel(config_of(dtype)).launch(*flat, backend=backend, return_lse=True)
    assert_attention_is_accurate(out.reshape(q.shape), lse.reshape(q.shape[:3]), q, k, v)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_the_scale_is_the_calls_or_the_configs(backend: str) -> None:
    q, k, v = problem()
    kernel = AttentionKernel(AttentionConfig(8, tile=16, block_q=16, softmax_scale=0.5))
    for arguments, used in ((None, 0.5), (2.0, 2.0)):
        out = kernel.launch(q, k, v, backend=backend, softmax_scale=arguments)
        assert_attention_is_accurate(out, None, q, k, v, softmax_scale=used)


def test_return_lse_of_the_call_replaces_that_of_the_config() -> None:
    q, k, v = problem()
    kernel = AttentionKernel(AttentionConfig(8, return_lse=True))
    out, lse = kernel.launch(q, k, v, backend="cpu")
    assert lse.shape == (1, 2, 5)
    assert np.array_equal(kernel.launch(q, k, v, backend="cpu", return_lse=False), out)


def test_attention_makes_the_config_from_the_arrays() -> None:
    q, k, v = problem(seq_q=9)
    v = np.ascontiguousarray(v[..., :3])
    out, lse = flash.attention(q, k, v, causal="top_left", softmax_scale=0.3, return_lse=True, backend="cpu")
    assert_attention_is_accurate(out, lse, q, k, v, softmax_scale=0.3, causal="top_left")
    first, second = (functions_module.kernel_of_attention(q, v, "top_left", None, {}) for _ in range(2))
    assert first is second


@EVERY_DTYPE
def test_attention_takes_the_type_of_the_queries(dtype: DType, torch: ModuleType) -> None:
    arrays = problem(seq_q=9, dtype=dtype)
    out, lse = flash.attention(*arrays, return_lse=True, causal=True, backend="cpu")
    assert (out.dtype, lse.dtype) == (dtype.numpy, np.float32)
    assert_attention_is_accurate(out, lse, *arrays, causal=True)
    tensors = [of_torch(torch, a) for a in arrays]
    for _ in range(2):  # the second time the type is known
        result = flash.attention(*tensors, causal=True, backend="cpu")
        assert result.dtype == tensors[0].dtype
        assert np.array_equal(of_numpy(result), out)


FEATURES: dict[str, Any] = {"window": (3, 2), "softcap": 2.0}


def random_operands(rng: np.random.Generator, *shape: int) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "alibi_slopes": np.abs(rng.standard_normal(shape[:2], dtype=np.float32)),
        "bias": rng.standard_normal(shape, dtype=np.float32),
        "mask": rng.random(shape) < 0.8,
        "sink": rng.standard_normal(shape[:2], dtype=np.float32),
    }


@pytest.mark.sample(6)
@EVERY_WAY
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_attention_takes_every_feature(backend: str, dtype: DType, layout: str) -> None:
    q, k, v = problem(2, 4, 21, 39, dtype=dtype)
    operands = random_operands(np.random.default_rng(0), 2, 4, 21, 39)
    operands["bias"] = operands["bias"].astype(dtype.numpy)
    swap = (0, 2, 1, 3) if layout == "bshd" else (0, 1, 2, 3)
    out, lse = flash.attention(
        *(a.transpose(swap) for a in (q, k, v)),
        causal=True,
        return_lse=True,
        layout=layout,
        backend=backend,
        **FEATURES,
        **operands,
    )
    assert_attention_is_accurate(
        out.transpose(swap),
        lse,
        q,
        k,
        v,
        causal=True,
        arithmetic=arithmetic_of(dtype.name),
        **FEATURES,
        **operands,
    )


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_operands_of_three_dimensions_are_of_all_heads(backend: str) -> None:
    q, k, v = (a.reshape(-1, *a.shape[2:]) for a in problem(2, 4, 5, 9))
    operands = random_operands(np.random.default_rng(0), 1, 8, 5, 9)
    arguments = {name: a[0] for name, a in operands.items()}
    out = flash.attention(q, k, v, backend=backend, **arguments)
    assert_attention_is_accurate(out[None], None, q[None], k[None], v[None], **operands)


def test_operands_may_be_tensors(torch: ModuleType) -> None:
    q, k, v = problem(2, 4, 5, 9)
    operands = random_operands(np.random.default_rng(0), 2, 4, 5, 9)
    tensors = {name: torch.from_numpy(a) for name, a in operands.items()}
    out = flash.attention(*map(torch.from_numpy, (q, k, v)), backend="cpu", **tensors)
    assert_attention_is_accurate(of_numpy(out), None, q, k, v, **operands)


def test_operands_of_a_gpu_reach_the_driver(driver: FakeDriver, make: Make) -> None:
    interpreting(driver)
    config = replace(CONFIG, alibi=True, bias="f32", mask=True, sink=True, **FEATURES)
    operands = random_operands(np.random.default_rng(0), 1, 2, 5, 9)
    arrays = problem()
    there = {name: on_device(driver, a) for name, a in operands.items()}
    out = make(config).launch(*(on_device(driver, a) for a in arrays), **there)
    assert_attention_is_accurate(fetch(driver, out), None, *arrays, **FEATURES, **operands)
    values = driver.launches[-1].values
    assert {name: values[name] for name in there} == {n: a.pointer for n, a in there.items()}
    assert (values["window_left"], values["window_right"], values["softcap"]) == (3, 2, 2.0)
    assert (values["mask_heads_stride"], values["mask_seq_q_stride"]) == (45, 9)
    staged = make(config).launch(*arrays, **operands, backend="cuda")
    assert np.array_equal(staged, fetch(driver, out))


def test_explain_says_what_is_done_to_scores() -> None:
    q, k, v = problem(seq_q=32, seq_k=32)
    config = replace(CONFIG, window=(3, None), softcap=30.0, mask=True)
    mask = np.ones((32, 32), bool)
    lines = AttentionKernel(config).explain(q, k, v, mask=mask, backend="cpu").splitlines()
    assert "scores:   window (3, None), softcap 30, mask (bool)" in lines
    useful = 2 * 2 * (8 + 8) * sum(32 - max(i - 3, 0) for i in range(32)) / 1e9
    (work,) = (line for line in lines if line.startswith("work:"))
    assert work.startswith(f"work:     {useful:.3g} GFLOP needed, ")
    assert "scores:" not in AttentionKernel(CONFIG).explain(q, k, v, backend="cpu")


@pytest.mark.slow
def test_explain_says_by_which_instructions_a_kernel_for_turing_multiplies() -> None:
    q, k, v = problem(dtype=F16)
    kernel = AttentionKernel(AttentionConfig(8, dtype="f16", target="sm_75"))
    said = kernel.explain(q, k, v, backend="interpreter")
    assert "\nproducts: mma.sync of m16n8k8, the next tile in registers\n" in said


def test_attention_takes_the_type_of_what_has_only_dlpack(torch: ModuleType) -> None:
    class OnlyDlpack:
        def __init__(self, tensor: Any) -> None:
            self.shape = tensor.shape
            self.dtype = [tensor.dtype]  # says nothing to us, and is no key
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    arrays = problem(dtype=BF16)
    out = flash.attention(*(OnlyDlpack(of_torch(torch, a)) for a in arrays), backend="cpu")
    assert type(out) is np.ndarray
    assert out.dtype == BF16.numpy
    assert_attention_is_accurate(out, None, *arrays)


def test_the_text_is_that_of_the_config(make: Make) -> None:
    kernel = make(AttentionConfig(8, target="sm_90"))
    assert kernel.ptx == build(kernel.config.kernel()).text
    assert kernel.module.target == "sm_90"
    assert kernel.resources.config == kernel.config.kernel()
    assert repr(kernel) == f"AttentionKernel({kernel.config!r})"


# ------------------------------------------------------------------------------- refused calls


def launch(config: AttentionConfig = CONFIG, *arrays: Any, **how: Any) -> Any:
    return AttentionKernel(config).launch(*(arrays or problem()), **{"backend": "cpu", **how})


def attention(*arrays: Any, **how: Any) -> Any:
    return flash.attention(*(arrays or problem()), **{"backend": "cpu", **how})


SINK = {"sink": np.ones(2, np.float32)}
WITH_OPERANDS = replace(CONFIG, bias="f32", mask=True, sink=True)
MISSING = (
    "launch: bias must be given, because the config says bias='f32'; mask must be given, because the config "
    "says mask=True"
)
NO_ARRAY = "must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__)"
TYPES = ", ".join(t.array_name for t in INPUT_DTYPES.values())
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "operand that the config lacks": (
        lambda: launch(alibi_slopes=np.ones(2, np.float32)),
        "launch: alibi_slopes is given, but the config does not say so; use AttentionConfig(alibi=True, ...)",
    ),
    "operands of the config": (lambda: launch(WITH_OPERANDS, **SINK), MISSING),
    "operands of the config, explained": (
        lambda: AttentionKernel(WITH_OPERANDS).explain(*problem(), **SINK, backend="cpu"),
        MISSING,
    ),
    "bias of another type": (
        lambda: attention(bias=np.zeros((5, 9))),
        "attention: bias must be one of float32, float16, bfloat16, got float64; convert it with "
        "bias.astype('float32')",
    ),
    "bias of f16 for f32": (
        lambda: attention(bias=np.zeros((5, 9), np.float16)),
        "attention: bias must be one of 'f32', None, got 'f16'",
    ),
    **{
        dtype: (
            lambda dtype=dtype: attention(*(a.astype(dtype) for a in problem())),  # type: ignore[misc]
            f"attention: q must be one of {TYPES}, got {dtype}; convert q, k and v, such as with "
            "q.astype('float32')",
        )
        for dtype in ("float64", "int32", ">f4", "complex64")
    },
    "keys of another type": (
        lambda: attention(problem(dtype=F16)[0], *problem()[1:]),
        "attention: 2 problems\n"
        "  k must be float16, as q is, got float32; convert with k.astype('float16')\n"
        "  v must be float16, as q is, got float32; convert with v.astype('float16')",
    ),
    "a scalar of numpy": (
        lambda: attention(np.float32(1), np.zeros(3), np.zeros(3)),
        f"attention: q {NO_ARRAY}, got float32; convert with numpy.asarray(q, numpy.float32)",
    ),
    "no dimensions": (
        lambda: attention(np.array(1.0), np.zeros(3), np.zeros(3)),
        "attention: q must have three or four dimensions, got none",
    ),
    "no arrays": (
        lambda: launch(CONFIG, [1.0], problem()[1], "v"),
        "launch: 2 problems\n"
        f"  q {NO_ARRAY}, got list; convert with numpy.asarray(q, numpy.float32)\n"
        f"  v {NO_ARRAY}, got str; convert with numpy.asarray(v, numpy.float32)",
    ),
    "layout that cannot be hashed": (
        lambda: attention(layout=["bhsd"]),
        "attention: layout must be one of bhsd, bshd, got ['bhsd']",
    ),
    "causal that cannot be hashed": (
        lambda: attention(causal=[]),
        "attention: causal must be one of False, True, 'bottom_right', 'top_left', got []",
    ),
    "no config": (
        lambda: AttentionKernel(None),  # type: ignore[arg-type]
        "AttentionKernel: config must be an AttentionConfig, got None; make one with "
        "flash.AttentionConfig(head_dim=64)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_and_told_the_cure(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises((ConfigError, LaunchError)) as caught:
        call()
    assert str(caught.value) == message


def test_attention_refuses_other_types_of_torch(torch: ModuleType) -> None:
    with pytest.raises(LaunchError) as caught:
        flash.attention(*(torch.zeros(1, 2, 3, 8, dtype=torch.float64),) * 3)
    assert str(caught.value) == (
        f"attention: q must be one of {TYPES}, got float64; convert q, k and v, such as with q.float()"
    )


# ------------------------------------------------------------------------------- the choice


def test_auto_is_the_cpu_without_a_gpu_and_says_why(without_gpu: CudaBackend) -> None:
    q, k, v = problem()
    kernel = AttentionKernel(CONFIG, cuda=without_gpu)
    assert_attention_is_accurate(kernel.launch(q, k, v), None, q, k, v)
    said = kernel.explain(q, k, v).splitlines()
    assert said[0] == "backend:  cpu (the driver lists no device)"
    assert said[1] == (
        "problem:  batch 1, heads 2, kv_heads 2, seq_q 5, seq_k 9, head_dim 8, head_dim_v 8, f32"
    )
    assert "kernel:   none: numpy computes it" in said


def test_auto_is_what_the_user_set(without_gpu: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_BACKEND", "interpreter")
    kernel = AttentionKernel(CONFIG, cuda=without_gpu)
    said = kernel.explain(*problem()).splitlines()
    assert said[0] == "backend:  interpreter (PTXGEN_BACKEND is interpreter)"
    assert f"kernel:   {CONFIG.kernel().name} for sm_80, verified" in said
    assert "tiles:    16 queries by 16 keys, 32 threads" in said
    assert "grid:     2 CTAs" in said


def test_an_explanation_says_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = AttentionKernel(CONFIG)
    shared, everywhere = len(kernel.proof.accesses), len(kernel.global_proof.accesses)
    barriers, warps = len(kernel.proof.barriers), len(kernel.proof.convergence)

    def proved() -> str:
        lines = kernel.explain(*problem(), backend="interpreter").splitlines()
        return next(line for line in lines if line.startswith("proved:"))

    assert proved() == (
        f"proved:   all {shared} shared-memory accesses in bounds, all {barriers} barriers uniform, "
        f"all {warps} warp instructions converged; all {everywhere} global accesses in bounds"
    )
    # A table of offsets in memory would be unknown.
    first = kernel.global_proof.accesses[0]
    unknown = replace(first, verdict=UNKNOWN, reason="an index comes from memory")
    partly = replace(kernel.global_proof, accesses=(unknown, *kernel.global_proof.accesses[1:]))
    proofs = replace(kernel.build.proofs, global_memory=partly)
    monkeypatch.setitem(vars(kernel.build), "proofs", proofs)
    assert proved().endswith(f"; all but 1 of {everywhere} global accesses (an index comes from memory)")


def test_auto_is_the_gpu_if_one_opens(driver: FakeDriver, make: Make) -> None:
    said = make(CONFIG).explain(*problem()).splitlines()
    assert said[0] == "backend:  cuda (a GPU opens)"
    assert "data:     numpy arrays on the host, copied to the GPU and back" in said
    assert f"kernel:   {CONFIG.kernel().name} for sm_90a, verified" in said
    assert said[-2].endswith("(driver 13.0)")
    assert "cuLaunchKernel" not in driver.names()


def test_arrays_of_a_gpu_are_refused_by_a_backend_of_the_cpu(driver: FakeDriver, make: Make) -> None:
    arrays = [on_device(driver, a) for a in problem()]
    with pytest.raises(LaunchError) as caught:
        make(CONFIG).launch(*arrays, backend="interpreter")
    assert str(caught.value) == (
        "launch: backend 'interpreter' computes on the host, but q is on cuda:0; copy the arrays "
        "to the host, or use backend='cuda'"
    )


def test_cuda_without_a_gpu_says_so() -> None:
    class NoDriver:
        @staticmethod
        def cuInit(_: int) -> tuple[object, ...]:
            raise RuntimeError("no libcuda")

    kernel = AttentionKernel(CONFIG, cuda=CudaBackend(NoDriver()))
    with pytest.raises(BackendError, match=r"^backend 'cuda' cannot be used: .*no libcuda"):
        kernel.launch(*problem(), backend="cuda")


# ------------------------------------------------------------------------------- the GPU


@pytest.mark.sample(1)
@EVERY_DTYPE
@pytest.mark.usefixtures("only_young_garbage")
def test_arrays_on_a_gpu_are_used_in_place_and_the_result_is_there_too(
    dtype: DType, driver: FakeDriver, make: Make
) -> None:
    interpreting(driver)
    q, k, v = problem(batch=2, heads=4, dtype=dtype)
    arrays = [on_device(driver, a) for a in (q, k, v)]
    out, lse = make(config_of(dtype)).launch(*arrays, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype.numpy, np.float32)
    assert_attention_is_accurate(fetch(driver, out), fetch(driver, lse), q, k, v)
    assert not {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"} & set(driver.names())
    pointers = (out.pointer, lse.pointer)
    del out, lse
    gc.collect()
    assert not set(pointers) & set(driver.memory)


@EVERY_INTERPRETED
def test_host_arrays_are_copied_there_and_back(dtype: DType, driver: FakeDriver, make: Make) -> None:
    interpreting(driver)
    q, k, v = problem(batch=2, heads=4, seq_q=21, dtype=dtype)
    fused = np.concatenate([q, q], axis=3)[..., :8]  # a view with gaps between its rows
    out = np.full((2, 4, 21, 9), 7, dtype.numpy)
    result, lse = make(config_of(dtype)).launch(fused, k, v, out=out[..., :8], return_lse=True)
    assert_attention_is_accurate(result, lse, q, k, v)
    assert (out[..., 8] == 7).all()
    assert not driver.memory  # everything was given back
    assert driver.names().count("cuStreamSynchronize") == 1


@EVERY_DTYPE
def test_host_arrays_are_staged_with_the_bytes_of_their_type(
    dtype: DType, driver: FakeDriver, torch: ModuleType
) -> None:
    q = problem(dtype=dtype)[0]
    with Staging(CudaBackend(driver), 0, 1) as staging:
        for array in (q[:, ::-1], of_torch(torch, q).flip(1)):
            there = staging.copy_of(view(array, "q"))
            assert there.device == ("cuda", 1)
            assert len(driver.memory[there.pointer].data) == q.size * dtype.nbytes
            back = staging.fetch(there)
            staging.wait()
            assert back.dtype == dtype.numpy
            assert np.array_equal(back, q[:, ::-1])
        room = staging.room_for(view(q, "q"))
        assert len(driver.memory[room.pointer].data) == q.size * dtype.nbytes
    assert not driver.memory


@pytest.mark.parametrize("dtype", INTERPRETED[1:])
def test_tensors_of_a_gpu_are_used_in_place(
    dtype: DType, driver: FakeDriver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = TorchOnGpu(driver, 1, monkeypatch)
    interpreting(driver)
    arrays = problem(dtype=dtype)
    out, lse = make(config_of(dtype)).launch(*map(torch.tensor, arrays), return_lse=True)
    assert (out.dtype, lse.dtype) == (f"torch.{dtype.array_name}", "torch.float32")
    assert (driver.launches[-1].stream, driver.launches[-1].ordinal) == (torch.stream, 1)
    assert_attention_is_accurate(out.numpy(), lse.numpy(), *arrays)


@pytest.mark.parametrize("dtype", INTERPRETED[1:])
def test_results_of_arrays_of_a_gpu_with_dlpack_are_their_librarys(
    dtype: DType, driver: FakeDriver, make: Make
) -> None:
    kernel = make(config_of(dtype))
    interpreting(driver)
    arrays = problem(dtype=dtype)
    arguments = [DeviceArray(a.shape, dtype, 1, CudaBackend(driver), 0) for a in arrays]
    for there, a in zip(arguments, arrays, strict=True):
        driver.memory[there.pointer].data[:] = np.frombuffer(a.tobytes(), np.uint8)
    out, lse = kernel.launch(*(Theirs(a) for a in arguments), return_lse=True)
    assert [type(a) for a in (out, lse)] == [Theirs, Theirs]
    assert_attention_is_accurate(fetch(driver, out.array), fetch(driver, lse.array), *arrays)


def test_memory_is_given_back_when_a_copy_fails(driver: FakeDriver, make: Make) -> None:
    driver.fail("cuMemcpyDtoHAsync", "CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        make(CONFIG).launch(*problem())
    assert not driver.memory


def test_the_parameters_reach_the_driver(driver: FakeDriver, make: Make) -> None:
    arrays = [on_device(driver, a, 1) for a in problem(2, 6, 37, 9, kv_heads=3)]
    out = make(CONFIG).launch(*arrays, softmax_scale=0.25)
    (launch,) = driver.launches
    assert launch.ordinal == 1
    assert launch.grid == (5 * 3 * 2, 1, 1)  # of 74 packed rows for each head of k and v
    assert launch.dynamic_shared == CONFIG.kernel().tiling.shared_bytes
    assert [launch.values[name] for name in "QKVO"] == [a.pointer for a in (*arrays, out)]
    assert {n: x for n, x in launch.values.items() if n not in "QKVO"} == {
        "Q_batch_stride": 6 * 37 * 8,
        "Q_head_stride": 37 * 8,
        "Q_row_stride": 8,
        "K_batch_stride": 3 * 9 * 8,
        "K_head_stride": 9 * 8,
        "K_row_stride": 8,
        "V_batch_stride": 3 * 9 * 8,
        "V_head_stride": 9 * 8,
        "V_row_stride": 8,
        "O_batch_stride": 6 * 37 * 8,
        "O_head_stride": 37 * 8,
        "O_row_stride": 8,
        "seq_q": 37,
        "seq_k": 9,
        "heads": 6,
        "group": 2,
        "softmax_scale": 0.25,
    }


def test_a_repeated_launch_is_one_call_for_the_work(driver: FakeDriver, make: Make) -> None:
    kernel = make(CONFIG)
    arrays = [on_device(driver, a) for a in problem()]
    out = on_device(driver, problem()[0])
    for array in (*arrays, out):  # as libraries that say on which device an array is
        array.device = SimpleNamespace(id=0)  # type: ignore[attr-defined]
    kernel.launch(*arrays, out=out)
    before = len(driver.calls)
    other = on_device(driver, problem()[0])
    other.device = SimpleNamespace(id=0)  # type: ignore[attr-defined]
    kernel.launch(*arrays, out=other)
    repeated = driver.names()[before:]
    assert repeated.count("cuLaunchKernel") == 1
    assert {name for name in repeated if not name.startswith("cuCtx")} == {"cuLaunchKernel"}
    assert driver.launches[-1].values["O"] == other.pointer


def test_what_a_call_changes_is_not_taken_from_an_earlier_one(driver: FakeDriver, make: Make) -> None:
    interpreting(driver)
    kernel = make(CONFIG)
    q, k, v = problem(heads=5, seq_q=5, seq_k=5, kv_heads=5)
    arrays = [on_device(driver, a) for a in (q, k, v)]
    for scale in (0.5, 2.0):
        out = kernel.launch(*arrays, softmax_scale=scale)
        assert_attention_is_accurate(fetch(driver, out), None, q, k, v, softmax_scale=scale)
    kernel.launch(*arrays)
    out, lse = kernel.launch(*arrays, return_lse=True)
    assert_attention_is_accurate(fetch(driver, out), fetch(driver, lse), q, k, v)
    swapped = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
    out = kernel.launch(*arrays, layout="bshd")
    wanted = fetch(driver, out).transpose(0, 2, 1, 3)
    assert_attention_is_accurate(wanted, None, *swapped)


def test_an_output_that_has_become_read_only_is_refused() -> None:
    q, k, v = problem()
    out = np.empty_like(q)
    kernel = AttentionKernel(CONFIG)
    kernel.launch(q, k, v, out=out, backend="cpu")
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="out must be writable, got a read-only array"):
        kernel.launch(q, k, v, out=out, backend="cpu")


def test_the_registers_of_a_loaded_kernel_are_the_assemblers(make: Make) -> None:
    kernel = make(AttentionConfig(8, tile=32, block_q=16))
    kernel.launch(*problem())
    assert " 40 registers (assembled), " in kernel.explain(*problem())


def test_results_of_a_dlpack_array_are_its_librarys() -> None:
    q, k, v = problem()
    result = AttentionKernel(CONFIG).launch(*(Theirs(a) for a in (q, k, v)), backend="cpu", return_lse=True)
    assert [type(a) for a in result] == [Theirs, Theirs]
    assert_attention_is_accurate(result[0].array, result[1].array, q, k, v)


@EVERY_INTERPRETED
def test_another_pointer_alignment_takes_another_kernel(dtype: DType, driver: FakeDriver, make: Make) -> None:
    interpreting(driver)
    config = config_of(dtype)
    kernel = make(config)
    q, k, v = problem(dtype=dtype)
    room = driver.place(np.concatenate([q.ravel()[:1], q.ravel()]))
    shifted = CudaArray(room + dtype.nbytes, q)
    for array, name in ((on_device(driver, q), ""), (shifted, f"_align{dtype.nbytes}")):
        out = kernel.launch(array, on_device(driver, k), on_device(driver, v))
        assert driver.launches[-1].entry == f"{config.kernel().name}{name}"
        assert_attention_is_accurate(fetch(driver, out), None, q, k, v)


def test_the_callers_stream_is_used(driver: FakeDriver, make: Make) -> None:
    stream = driver.make_stream()
    arrays = [on_device(driver, a) for a in problem()]
    out = make(CONFIG).launch(*arrays, stream=SimpleNamespace(cuda_stream=stream))
    assert driver.launches[-1].stream == stream
    assert out.__cuda_array_interface__["stream"] == stream
    make(CONFIG).launch(*arrays)
    assert driver.launches[-1].stream == 0


def test_a_producer_on_another_stream_is_waited_for(driver: FakeDriver, make: Make) -> None:
    mine, theirs = driver.make_stream(), driver.make_stream()
    q, k, v = problem()
    arrays = (on_device(driver, q, stream=theirs), on_device(driver, k, stream=mine))
    make(CONFIG).launch(*arrays, on_device(driver, v), stream=mine)
    waits = [call.arguments for call in driver.calls if call.name == "cuStreamSynchronize"]
    assert [int(arguments[0]) for arguments in waits] == [theirs]
    assert driver.names().index("cuStreamSynchronize") < driver.names().index("cuLaunchKernel")


def test_the_target_is_the_devices_own_unless_the_config_says_another(driver: FakeDriver, make: Make) -> None:
    arrays = [on_device(driver, a) for a in problem()]
    for asked, used in ((None, "sm_90a"), ("sm_80", "sm_80")):
        make(AttentionConfig(8, target=asked)).launch(*arrays)
        assert f".target {used}\n" in driver.launches[-1].text
    with pytest.raises(LaunchError) as caught:
        make(AttentionConfig(8, target="sm_100a")).launch(*arrays)
    assert str(caught.value) == (
        "launch: the config is for sm_100a, which device 0 (Fake H100, sm_90) does not run; "
        "leave target=None, or use a device of that architecture"
    )


@pytest.mark.gpu
def test_a_real_gpu_is_as_accurate_as_numpy() -> None:
    q, k, v = problem(batch=2, heads=4, seq_q=37, seq_k=51)
    config = AttentionConfig(8, causal=True)
    out, lse = AttentionKernel(config, cache=ModuleCache(None)).launch(
        q, k, v, backend="cuda", return_lse=True
    )
    assert_attention_is_accurate(out, lse, q, k, v, causal=True)


@pytest.mark.ptxas
def test_a_kernel_is_assembled_once_and_kept(
    assembler: Assembler, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find(*, target: str) -> Assembler:
        asked.append(target)
        return assembler

    monkeypatch.setattr("ptxgen.runtime.cuda.find_assembler", find)
    backend, cache = CudaBackend(driver), ModuleCache(None)
    monkeypatch.setattr(driver, "version", 99_000)  # takes the cubins of any assembler
    first, second = (Launcher(backend, cache) for _ in range(2))
    geometry = check(CONFIG, *[view(a, "a") for a in problem()], None)
    built = proved_build(Forward(CONFIG, first, LAUNCH).kernel(geometry, 0, 16, ()))
    program = first.program(built)
    assert program.startswith(b"\x7fELF")
    monkeypatch.setattr(backend, "compile", None)  # a second compilation would fail
    assert second.program(built) == program
    assert set(asked) == {"sm_90a"}


def test_a_kernel_that_is_loaded_lets_go_of_its_instructions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = SimpleNamespace(load=lambda *_: SimpleNamespace(registers=40))
    launcher = Launcher(backend)
    monkeypatch.setattr(launcher, "program", lambda _: b"a cubin")
    built = build(CONFIG.kernel())
    plan: Any = SimpleNamespace(entry=built.header.name, dynamic_shared=0)
    released: list[BuiltKernel] = []
    monkeypatch.setattr(BuiltKernel, "release", lambda kernel: released.append(kernel))
    assert launcher.load(built, plan, 0) is launcher.load(built, plan, 0)
    assert released == [built]
    assert built.registers == 40


def bad_calls() -> dict[str, tuple[Any, dict[str, Any]]]:
    """By name: what to do with device arrays q, k, v, and further arguments of the launch."""

    def keep(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return q, k, v

    def retyped(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        k.__cuda_array_interface__["typestr"] = "<f2"
        return q, k, v

    def null(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        v.__cuda_array_interface__["data"] = (0, False)
        return q, k, v

    def host(q: Any, _: Any, v: Any) -> tuple[Any, ...]:
        return q, problem()[1], v

    return {
        "dtype": (retyped, {}),
        "null pointer": (null, {}),
        "devices": (host, {}),
        "layout": (keep, {"layout": "sbhd"}),
        "scale": (keep, {"softmax_scale": float("nan")}),
        "stream": (keep, {"stream": "0"}),
        "backend": (keep, {"backend": "gpu"}),
        "out": (keep, {"out": np.zeros((1, 2, 5, 8), np.float32)}),
    }


@pytest.mark.parametrize("name", list(bad_calls()))
def test_nothing_is_allocated_copied_loaded_or_launched_for_a_bad_call(
    name: str, driver: FakeDriver, make: Make
) -> None:
    spoil, how = bad_calls()[name]
    arrays = spoil(*(on_device(driver, a) for a in problem()))
    with pytest.raises((LaunchError, ConfigError)):
        make(CONFIG).launch(*arrays, **how)
    assert not COPIES_AND_LAUNCHES & set(driver.names())


def tensors(driver: FakeDriver, ordinal: int = 0) -> list[TensorOnGpu]:
    """q, k, v and out on a device."""
    q, k, v = problem()
    return [TensorOnGpu(driver, a, ordinal) for a in (q, k, v, q)]


def moved(which: int, by: Callable[[list[Any]], int]) -> Callable[[list[Any]], None]:
    """A change of the address of an array of q, k, v and out to one that follows from all of them."""

    def change(arrays: list[Any]) -> None:
        arrays[which].pointer = by(arrays)

    return change


def changed(which: int, **attributes: Any) -> Callable[[list[Any]], None]:
    """A change of attributes of an array of q, k, v and out."""

    def change(arrays: list[Any]) -> None:
        vars(arrays[which]).update(attributes)

    return change


CHANGES: dict[str, tuple[Callable[[list[Any]], None], dict[str, Any]]] = {
    "null": (moved(1, lambda _: 0), {}),
    "misaligned": (moved(2, lambda of: of[2].pointer + 2), {}),
    "shared": (moved(3, lambda of: of[0].pointer), {}),
    "overlapping": (moved(3, lambda of: of[1].pointer + 64), {}),
    "shape": (changed(1, shape=(1, 2, 9, 4)), {}),
    "dtype": (changed(2, dtype="torch.float16"), {}),
    "strides of out": (changed(3, stride=lambda: (80, 40, 0, 1)), {}),
    "strides of k": (changed(1, stride=lambda: (288, 144, 16, 2)), {}),
    "device": (changed(3, device=SimpleNamespace(type="cuda", index=1)), {}),
    "host": (changed(0, is_cuda=False, is_cpu=True), {}),
    "gradients": (changed(3, requires_grad=True), {}),
    "negation": (changed(2, is_neg=lambda: True), {}),
    "layout": (lambda _: None, {"layout": ["bhsd"]}),
    "layout in an array": (lambda _: None, {"layout": np.array(["bhsd"])}),
    "no layout": (lambda _: None, {"layout": "bhds"}),
    "no backend": (lambda _: None, {"backend": "gpu"}),
    "lengths": (lambda _: None, {"max_seqlen_q": 5}),
    "scale": (lambda _: None, {"softmax_scale": float("nan")}),
    "stream": (lambda _: None, {"stream": "0"}),
    "backend": (lambda _: None, {"backend": "interpreter"}),
    "flag": (lambda _: None, {"return_lse": 0}),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_errors_after_a_known_call_are_those_of_a_first_call(
    name: str, driver: FakeDriver, make: Make
) -> None:
    change, wrong = CHANGES[name]
    texts = []
    for is_first in (True, False):
        kernel, arrays = make(CONFIG), tensors(driver)
        if not is_first:
            kernel.launch(*arrays[:3], out=arrays[3], stream=0)
        launched = len(driver.launches)
        change(arrays)
        with pytest.raises((LaunchError, ConfigError)) as refused:
            kernel.launch(*arrays[:3], out=arrays[3], **{"stream": 0, **wrong})
        texts.append(re.sub(r"0x[0-9a-f]+", "0x", str(refused.value)))
        assert len(driver.launches) == launched
    assert texts[0] == texts[1]


def test_a_known_call_reads_the_addresses_of_its_arrays(driver: FakeDriver, make: Make) -> None:
    kernel, calls = make(CONFIG), [tensors(driver, ordinal) for ordinal in (0, 0, 1)]
    for arrays in calls:
        kernel.launch(*arrays[:3], out=arrays[3], stream=0)
    launched = [(done.ordinal, *[done.values[name] for name in "QKVO"]) for done in driver.launches]
    assert launched == [
        (ordinal, *[array.pointer for array in arrays])
        for ordinal, arrays in zip((0, 0, 1), calls, strict=True)
    ]


@pytest.mark.parametrize("splits", [1, 2])
def test_a_repeated_call_launches_what_a_first_one_does(driver: FakeDriver, make: Make, splits: int) -> None:
    kernel, seen = make(replace(CONFIG, splits=splits)), set()
    for stream in (0, driver.make_stream(0)):
        for how in ({}, {"softmax_scale": 0.25}, {"backend": "cuda"}):
            for _ in range(2):
                arrays = [on_device(driver, a) for a in (*problem(), problem()[0])]
                addresses = [array.pointer for array in arrays]
                launched = []
                for one in (kernel, make(kernel.config)):
                    driver.launches.clear()
                    one.launch(*arrays[:3], out=arrays[3], stream=stream, **how)
                    launched.append(
                        [
                            (done.text, done.grid, done.stream, name, value)
                            for done in driver.launches
                            for name, value in done.values.items()
                            if value in addresses or isinstance(value, float)
                        ]
                    )
                assert launched[0] == launched[1]
                seen.add(tuple(launched[0]))
    assert len(seen) == 12


def test_known_calls_differ_by_the_alignment_of_their_arrays(driver: FakeDriver, make: Make) -> None:
    kernel = make(CONFIG)
    arrays, shifted = tensors(driver), tensors(driver)
    shifted[1].pointer += 4
    for q, k, v, out in (arrays, shifted, arrays):
        kernel.launch(q, k, v, out=out, stream=0)
    entries = [done.text for done in driver.launches]
    assert entries[0] == entries[2] != entries[1]


def test_memory_that_is_on_no_gpu_is_refused(driver: FakeDriver, make: Make) -> None:
    q, k, v = problem()
    with pytest.raises(LaunchError) as caught:
        make(CONFIG).launch(CudaArray(0x10, q), on_device(driver, k), on_device(driver, v))
    assert str(caught.value) == (
        "launch: address 0x10 of a CudaArray is not on a GPU of this process; "
        "pass an array whose memory is alive"
    )


def test_after_a_poisoned_context_nothing_more_is_launched(driver: FakeDriver, make: Make) -> None:
    kernel = make(CONFIG)
    arrays = [on_device(driver, a) for a in problem()]
    kernel.launch(*arrays)
    driver.poison()
    for _ in range(2):
        with pytest.raises(PoisonedContextError):
            kernel.launch(*arrays)
    assert len(driver.launches) == 1


def test_kept_plans_and_geometries_are_bounded(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr("ptxgen.runtime.bounded_cache._MOST", 3)
    kernel = make(CONFIG)
    for seq_k in range(1, 9):
        kernel.launch(*problem(seq_k=seq_k))
        assert len(kernel._forward.geometries) <= 3
        assert len(kernel._forward._prepared) <= 3


# ------------------------------------------------------------------------------- the package


def test_importing_flash_imports_neither_cuda_nor_torch() -> None:
    code = (
        "import sys, flash; assert 'flash.kernel' not in sys.modules; "
        "flash.AttentionKernel(flash.AttentionConfig(8)); "
        "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'torch', 'cupy', 'jax')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_these_and_no_others() -> None:
    assert flash.__all__ == [
        "AttentionConfig",
        "AttentionGradient",
        "AttentionKernel",
        "DecodeKernel",
        "DecodeStep",
        "KVCache",
        "attention",
        "attention_backward",
        "attention_varlen",
        "attention_varlen_backward",
        "attention_weights",
        "attention_with_kvcache",
        "block_table_from_csr",
        "lse_from_log2",
        "lse_to_log2",
        "merge_partials",
        "quantize_mx",
        "quantize_nvfp4",
        "quantize_rows",
        "rotary_tables",
        "to_device",
    ]
    assert flash.AttentionConfig is AttentionConfig
    with pytest.raises(AttributeError) as caught:
        flash.Attention  # noqa: B018  # the access is what is tested
    names = ", ".join(flash.__all__)
    assert str(caught.value) == f"module 'flash' has no attribute 'Attention'; it has {names}"


def test_a_copy_of_a_kernel_is_the_kernel_and_a_pickled_one_does_the_same() -> None:
    kernel = AttentionKernel(CONFIG)
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy({"layer": kernel})["layer"] is kernel
    q, k, v = problem()
    wanted = kernel.launch(q, k, v, backend="cpu")
    again = pickle.loads(pickle.dumps(kernel))
    assert again.config == CONFIG
    np.testing.assert_array_equal(again.launch(q, k, v, backend="cpu"), wanted)
