"""The edge cases that broke other attention implementations, through the public launch.

Streams, devices, poisoned contexts and copies are in test_kernel.py, null pointers in
test_launch.py.
"""

from __future__ import annotations

import mmap
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray, kernel_on, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate, rounded_normal

from flash.kernel import AttentionKernel
from flash.operands.dtypes import DTYPES, F32, DType
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import ConfigError, LaunchError

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]


class Way(NamedTuple):
    """How a call is computed, and in which type."""

    backend: str
    dtype: DType


WAYS = pytest.mark.parametrize(
    "way",
    [Way(backend, dtype) for backend in ("cpu", "interpreter") for dtype in DTYPES.values()],
    ids=lambda way: f"{way.backend}-{way.dtype.name}",
)


def kernel(head_dim: int, head_dim_v: int | None = None, dtype: DType = F32, **how: Any) -> AttentionKernel:
    block_q = 16 if dtype is F32 else 32  # the smallest
    config = AttentionConfig(head_dim, head_dim_v, dtype.name, tile=16, block_q=block_q, **how)
    return AttentionKernel(config)


def problem(
    q_shape: tuple[int, ...], kv_heads: int, seq_k: int, d_v: int | None = None, dtype: DType = F32
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(1)
    batch, _, _, d = q_shape
    return (
        rounded_normal(rng, q_shape, dtype.numpy),
        rounded_normal(rng, (batch, kv_heads, seq_k, d), dtype.numpy),
        rounded_normal(rng, (batch, kv_heads, seq_k, d if d_v is None else d_v), dtype.numpy),
    )


def run_and_judge(way: Way, q: Array, k: Array, v: Array, **how: Any) -> tuple[Array, Array]:
    out, lse = kernel(q.shape[3], v.shape[3], way.dtype, **how).launch(
        q, k, v, backend=way.backend, return_lse=True
    )
    assert_attention_is_accurate(out, lse, q, k, v, causal=how.get("causal", False))
    return out, lse


@pytest.mark.slow
@WAYS
def test_a_row_without_a_visible_key_is_zero_and_minus_infinity(way: Way) -> None:
    out, lse = run_and_judge(way, *problem((1, 1, 20, 4), 1, 3, dtype=way.dtype), causal="bottom_right")
    assert (out[:, :, :17] == 0).all()
    assert np.isneginf(lse[:, :, :17]).all()
    assert np.isfinite(lse[:, :, 17:]).all()


@WAYS
@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 39), (39, 1), (3, 17), (17, 3), (16, 32), (33, 18)])
def test_causal_masks_are_aligned_for_unequal_lengths(way: Way, causal: str, seq_q: int, seq_k: int) -> None:
    run_and_judge(way, *problem((1, 1, seq_q, 4), 1, seq_k, dtype=way.dtype), causal=causal)


@pytest.mark.slow
@WAYS
def test_keys_and_values_may_be_broadcast(way: Way) -> None:
    q, k, v = problem((2, 4, 5, 8), 1, 19, dtype=way.dtype)
    k, v = (np.broadcast_to(a[:1], (2, 2, *a.shape[2:])) for a in (k, v))
    run_and_judge(way, q, k, v)
    one_key = np.broadcast_to(k[:, :, :1], k.shape)
    run_and_judge(way, q, one_key, v)


def sparse_memory(elements: int, dtype: DType) -> Array:
    """Zeroed memory that takes room only where it is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, dtype.nbytes * elements, flags=flags), dtype.numpy)


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is only reserved")
@WAYS
@pytest.mark.parametrize("dimension", ["batch", "head", "row"])
def test_offsets_beyond_two_to_the_31_elements_are_right(way: Way, dimension: str) -> None:
    far = 2**31 + 64
    strides = {"batch": (far, 128, 8), "head": (128, far, 8), "row": (128, 64, far)}[dimension]
    q, k, v = problem((2, 2, 2, 8), 2, 2, dtype=way.dtype)
    memory = sparse_memory(far + 1024, way.dtype)
    spread = []
    for n, a in enumerate((q, k, v, np.zeros_like(q))):
        there = np.lib.stride_tricks.as_strided(
            memory[256 * n :], a.shape, tuple(memory.itemsize * s for s in (*strides, 1))
        )
        there[...] = a
        spread.append(there)
    *inputs, out = spread
    kernel(8, dtype=way.dtype).launch(*inputs, out=out, backend=way.backend)
    assert_attention_is_accurate(out, None, q, k, v)


@WAYS
def test_views_of_one_fused_array_are_used_as_they_are(way: Way) -> None:
    fused = rounded_normal(
        np.random.default_rng(2), (2, 19, 3, 4, 8), way.dtype.numpy
    )  # batch, seq, qkv, heads, d
    q, k, v = (fused[:, :, n] for n in range(3))
    out = np.empty_like(q)
    kernel(8, dtype=way.dtype).launch(q, k, v, out=out, layout="bshd", backend=way.backend)
    swap = (0, 2, 1, 3)
    wanted = [a.transpose(swap) for a in (out, q, k, v)]
    assert_attention_is_accurate(wanted[0], None, *wanted[1:])


@pytest.mark.slow
@WAYS
def test_reversed_and_transposed_views_are_used_as_they_are(way: Way) -> None:
    q, k, v = problem((2, 3, 18, 8), 3, 18, dtype=way.dtype)
    backwards = [a[::-1, :, ::-1] for a in (q, k, v)]
    out = np.zeros_like(q).transpose(1, 0, 2, 3)[:, :, ::-1].transpose(1, 0, 2, 3)
    kernel(8, causal=True, dtype=way.dtype).launch(*backwards, out=out, backend=way.backend)
    assert_attention_is_accurate(out, None, *backwards, causal=True)


@WAYS
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_storage_offset_that_breaks_the_alignment_is_no_problem(
    way: Way, offset: int, torch: ModuleType
) -> None:
    q, k, v = problem((1, 2, 3, 8), 2, 17, dtype=way.dtype)

    def shifted(a: Array) -> Any:
        storage = torch.zeros(a.size + 4, dtype=getattr(torch, way.dtype.array_name))
        host_array(view(storage, "storage"))[offset : offset + a.size] = a.ravel()
        return storage[offset : offset + a.size].view(a.shape)

    out = kernel(8, dtype=way.dtype).launch(shifted(q), shifted(k), shifted(v), backend=way.backend)
    assert_attention_is_accurate(host_array(view(out, "out")), None, q, k, v)


@WAYS
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_lies_in_unused_slots_cannot_reach_the_result(way: Way, poison: float) -> None:
    q, k, v = problem((1, 2, 5, 8), 2, 40, dtype=way.dtype)
    k[:, :, 21:] = v[:, :, 21:] = poison  # a cache of 40 slots with 21 in use
    out, lse = run_and_judge(way, q, k[:, :, :21], v[:, :, :21])
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_keys_hidden_by_causality_cannot_reach_the_result(way: Way, poison: float) -> None:
    q, k, v = problem((1, 1, 5, 8), 1, 24, dtype=way.dtype)
    k[:, :, 5:] = v[:, :, 5:] = poison
    run_and_judge(way, q, k, v, causal="top_left")


@WAYS
def test_a_nan_that_is_seen_is_not_hidden(way: Way) -> None:
    q, k, v = problem((1, 1, 4, 8), 1, 20, dtype=way.dtype)
    q[0, 0, 1, 3] = v[0, 0, 7, 2] = np.nan
    out = kernel(8, dtype=way.dtype).launch(q, k, v, backend=way.backend)
    assert np.isnan(out[0, 0, 1]).all()
    assert np.isnan(out[0, 0, :, 2]).all()
    assert np.isfinite(out[0, 0, 0, :2]).all()


@WAYS
def test_without_keys_the_result_is_zero_and_minus_infinity(way: Way) -> None:
    out, lse = run_and_judge(way, *problem((2, 2, 5, 8), 2, 0, dtype=way.dtype))
    assert (out == 0).all()
    assert np.isneginf(lse).all()


@WAYS
@pytest.mark.parametrize(("shape", "kv_heads"), [((0, 2, 5, 8), 2), ((2, 0, 5, 8), 0), ((2, 2, 0, 8), 2)])
def test_without_queries_the_result_is_empty(way: Way, shape: tuple[int, ...], kv_heads: int) -> None:
    q, k, v = problem(shape, kv_heads, 7, 4, dtype=way.dtype)
    out, lse = kernel(8, 4, dtype=way.dtype).launch(q, k, v, backend=way.backend, return_lse=True)
    assert out.shape == (*shape[:3], 4)
    assert lse.shape == shape[:3]


@WAYS
@pytest.mark.parametrize(
    ("q_shape", "kv_heads", "seq_k"),
    [
        *(((1, 2, 3, 4), 2, keys) for keys in (1, 2, 15, 17, 31, 35)),
        *(((2, 2 * group, 2, 4), 2, 17) for group in (5, 6, 7)),
    ],
)
def test_any_number_of_keys_and_of_heads_of_a_group_is_right(
    way: Way, q_shape: tuple[int, ...], kv_heads: int, seq_k: int
) -> None:
    run_and_judge(way, *problem(q_shape, kv_heads, seq_k, dtype=way.dtype))


@pytest.mark.sample(3)
@WAYS
@pytest.mark.parametrize("head_dim", [1, 3, 40, 59, 72, 111])
def test_head_dims_that_are_multiples_of_nothing_are_right(way: Way, head_dim: int) -> None:
    run_and_judge(way, *problem((1, 1, 3, head_dim), 1, 18, d_v=head_dim // 2 + 1, dtype=way.dtype))


@WAYS
def test_the_log_sum_exp_is_natural_and_merges_parts(way: Way) -> None:
    q, k, v = problem((1, 2, 3, 8), 2, 34, dtype=way.dtype)
    launch = kernel(8, return_lse=True, dtype=way.dtype).launch
    parts = [launch(q, k[:, :, s], v[:, :, s], backend=way.backend) for s in (slice(20), slice(20, 34))]
    lse = np.logaddexp(parts[0][1], parts[1][1])
    out = sum(np.exp(part_lse - lse)[..., None] * part for part, part_lse in parts)
    whole, whole_lse = launch(q, k, v, backend=way.backend)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5)
    rounding = float(ml_dtypes.finfo(way.dtype.numpy).eps)  # of each part, and of the whole
    np.testing.assert_allclose(
        out, whole.astype(np.float32), rtol=1e-5 + 2 * rounding, atol=1e-6 + 2 * rounding
    )


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_input_is_refused_as_the_output_and_left_alone(backend: str, which: int) -> None:
    arrays = problem((1, 2, 5, 8), 2, 5)
    before = [a.copy() for a in arrays]
    with pytest.raises(LaunchError, match=f"^launch: out must not share memory with {'qkv'[which]}; "):
        kernel(8).launch(*arrays, out=arrays[which], backend=backend)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))


@WAYS
def test_scores_of_any_size_are_right(way: Way) -> None:
    q, k, v = problem((1, 1, 4, 4), 1, 18, dtype=way.dtype)
    for size in (1e-20, 1e4, -1e4):  # sums of exponentials that vanish, overflow, or are one term
        run_and_judge(way, (q.astype(np.float32) * np.float32(size)).astype(q.dtype), k, v)


@pytest.mark.sample(3)
@WAYS
def test_repeated_launches_give_the_same_bits(way: Way) -> None:
    q, k, v = problem((1, 2, 33, 8), 1, 50, dtype=way.dtype)
    first, *rest = (
        kernel(8, causal=True, dtype=way.dtype).launch(q, k, v, backend=way.backend).tobytes()
        for _ in range(3)
    )
    assert all(again == first for again in rest)


# ------------------------------------------------------------------------------- the device


@pytest.fixture
def no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)


@pytest.mark.usefixtures("no_assembler")
def test_more_heads_than_grid_y_holds_are_launched_in_x() -> None:
    driver = FakeDriver()
    arrays = [on_device(driver, a) for a in problem((2, 35_000, 1, 4), 35_000, 1)]
    kernel_on(driver, AttentionConfig(4)).launch(*arrays)
    assert driver.launches[-1].grid == (70_000, 1, 1)


@pytest.mark.usefixtures("no_assembler")
def test_empty_inputs_have_no_address_and_need_none() -> None:
    driver = FakeDriver()
    q, k, v = problem((1, 2, 5, 8), 2, 0)
    absent = [CudaArray(0, a) for a in (k, v)]
    kernel_on(driver, AttentionConfig(8)).launch(on_device(driver, q), *absent)
    launch = driver.launches[-1]
    assert launch.values["seq_k"] == 0
    assert launch.values["K"] == launch.values["V"] == launch.values["Q"] != 0


@pytest.mark.usefixtures("no_assembler")
@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (1, 2, 0, 8)])
def test_nothing_is_launched_without_a_query(shape: tuple[int, ...]) -> None:
    driver = FakeDriver()
    q, k, v = problem(shape, 2, 7)
    arrays = [on_device(driver, k), on_device(driver, v)]
    out, lse = kernel_on(driver, AttentionConfig(8)).launch(CudaArray(0, q), *arrays, return_lse=True)
    assert (out.shape, lse.shape) == (shape, shape[:3])
    assert not driver.launches


def test_tiles_that_the_device_cannot_hold_are_refused_with_those_it_can() -> None:
    driver = FakeDriver(FakeDevice("Fake RTX", 89, shared_per_block_optin=99 << 10))
    arrays = [on_device(driver, a) for a in problem((1, 1, 2, 128), 1, 2)]
    with pytest.raises(ConfigError) as caught:
        kernel_on(driver, AttentionConfig(128, tile=128, block_q=16)).launch(*arrays)
    assert str(caught.value).startswith("AttentionConfig: head_dim=128, head_dim_v=128, tile=128, ")
    assert "but sm_89 allows 101376 bytes per block; the largest tile that fits is " in str(caught.value)


def test_the_shared_memory_of_this_very_device_counts() -> None:
    driver = FakeDriver(FakeDevice("Small H100", 90, shared_per_block_optin=64 << 10))
    config = AttentionConfig(64, tile=64, block_q=128, target="sm_90")
    needed = config.kernel().tiling.shared_bytes
    arrays = [on_device(driver, a) for a in problem((1, 1, 2, 64), 1, 2)]
    with pytest.raises(LaunchError) as caught:
        kernel_on(driver, config).launch(*arrays)
    assert str(caught.value) == (
        f"launch: the kernel needs {needed} bytes of shared memory per block, but device 0 "
        "(Small H100, sm_90) allows 65536; use a smaller tile or block_q"
    )
    with pytest.raises(LaunchError, match="bytes of shared memory per block"):
        kernel_on(driver, config).launch(*problem((1, 1, 2, 64), 1, 2))
    assert not {"cuModuleLoadDataEx", "cuMemAlloc"} & set(driver.names())


def test_arrays_of_two_devices_are_refused() -> None:
    driver = FakeDriver(FakeDevice(), FakeDevice())
    arrays = [on_device(driver, a, n % 2) for n, a in enumerate(problem((1, 1, 2, 8), 1, 2))]
    with pytest.raises(LaunchError) as caught:
        kernel_on(driver, AttentionConfig(8)).launch(*arrays)
    assert str(caught.value) == (
        "launch: all arrays must be on one device, got q on cuda:0, k on cuda:1, v on cuda:0; "
        "move them to that of q"
    )


@pytest.mark.usefixtures("no_assembler")
def test_the_callers_current_device_stays_current() -> None:
    driver = FakeDriver(FakeDevice(), FakeDevice())
    driver.stack.append(driver.context_of(0))
    arrays = [on_device(driver, a, 1) for a in problem((1, 1, 2, 8), 1, 2)]
    for array in arrays:
        array.device = SimpleNamespace(id=1)  # type: ignore[attr-defined]  # as CuPy's arrays have
    kernel_on(driver, AttentionConfig(8)).launch(*arrays)
    assert driver.launches[-1].ordinal == 1
    assert driver.stack == [driver.context_of(0)]
