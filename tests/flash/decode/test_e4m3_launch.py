"""`DecodeKernel.launch` with caches of one byte an element."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_attention_is_accurate
from numpy.typing import NDArray

import flash
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.operands.dtypes import DTYPES, E4M3, FP8_ARRAYS, FP8_DTYPES, DType
from ptxgen.errors import LaunchError

pytestmark = pytest.mark.usefixtures("unproved")

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V, ROWS = 2, 4, 2, 24, 16, 40
USED = np.array([37, 20], np.int32)
K_SCALE, V_SCALE = np.array([0.5, 2.0], np.float32), np.array(0.03, np.float32)
TABLE = np.array([[3, 0, 7, 1, 9], [2, 8, 4, 5, 6]], np.int32)  # of pages of 8 rows


def caches(dtype: str = "f16", stored: DType = E4M3) -> tuple[flash.DecodeKernel, dict[str, Any]]:
    """A kernel, and the arrays of a call of it, without new rows."""
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal(shape, np.float32)
        for shape in ((BATCH, HEADS, 1, DIM), (BATCH, KV_HEADS, ROWS, DIM), (BATCH, KV_HEADS, ROWS, DIM_V))
    )
    arrays = {
        "q": q.astype(DTYPES[dtype].numpy),
        "k_cache": k.astype(stored.numpy),
        "v_cache": v.astype(stored.numpy),
        "seqused_k": USED,
        "k_scale": K_SCALE,
        "v_scale": V_SCALE,
    }
    return flash.DecodeKernel(flash.AttentionConfig(DIM, DIM_V, dtype=dtype, causal=True)), arrays


def in_pages(array: Array) -> Array:
    """The rows of a contiguous cache in pages, as `TABLE` says."""
    _, heads, rows, dim = array.shape
    pages = np.zeros((TABLE.size, heads, 8, dim), array.dtype)
    pages[TABLE] = array.reshape(BATCH, heads, rows // 8, 8, dim).swapaxes(1, 2)
    return pages


def assert_attends(out: Array, lse: Array, arrays: dict[str, Any], dtype: str, splits: int) -> None:
    """Each item attends to the numbers in its rows of the caches, times the scales."""
    of_heads = {name: np.broadcast_to(arrays[f"{name}_scale"], KV_HEADS)[:, None, None] for name in "kv"}
    for b in range(BATCH):
        keys, values = (
            arrays[f"{name}_cache"][b, :, : USED[b]].astype(np.float32) * of_heads[name] for name in "kv"
        )
        here = slice(b, b + 1)
        assert_attention_is_accurate(
            out[here],
            lse[here],
            arrays["q"][here],
            keys[None],
            values[None],
            causal=True,
            arithmetic=arithmetic_of(dtype, parts=PARTS_OF_F32 * (splits > 1)),
        )


@pytest.mark.judged
@pytest.mark.grid
@pytest.mark.parametrize(("backend", "dtype", "splits"), [("cpu", "f16", 1), ("interpreter", "bf16", 3)])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
def test_numbers_of_the_caches_are_multiplied_by_the_scales(
    backend: Any, dtype: str, splits: int, paged: bool, stored: DType
) -> None:
    kernel, arrays = caches(dtype, stored)
    given = dict(arrays)
    if paged:
        given |= {name: in_pages(arrays[name]) for name in ("k_cache", "v_cache")}
        given["block_table"] = TABLE
    out, lse = kernel.launch(**given, splits=splits, return_lse=True, backend=backend)
    assert_attends(out, lse, arrays, dtype, splits)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
def test_new_rows_are_divided_by_the_scales_and_rounded(backend: Any, stored: DType) -> None:
    kernel, arrays = caches("f16", stored)
    most = float(ml_dtypes.finfo(stored.numpy).max)
    rng = np.random.default_rng(2)
    k, v = (rng.standard_normal((BATCH, KV_HEADS, 2, d)).astype(np.float16) for d in (DIM, DIM_V))
    k[0, 0, 0, :3] = 300.0, -np.inf, 60000.0  # 600 is more than e4m3 has, and 120,000 than others
    kernel.launch(**arrays, k=k, v=v, backend=backend)
    for name, new, scale in (("k_cache", k, K_SCALE[:, None, None]), ("v_cache", v, V_SCALE)):
        wanted = np.clip(new.astype(np.float32) / scale, -most, most).astype(stored.numpy)
        for b in range(BATCH):
            there = arrays[name][b, :, USED[b] - 2 : USED[b]]
            assert (there.view(np.uint8) == wanted[b].view(np.uint8)).all()


def test_new_keys_are_rotated_in_f32_and_rounded_once() -> None:
    both = []
    for backend in ("cpu", "interpreter"):
        kernel, arrays = caches()
        k, v = (np.full((BATCH, KV_HEADS, 1, d), 1.3, np.float16) for d in (DIM, DIM_V))
        cos, sin = flash.rotary_tables(ROWS, DIM)
        kernel.launch(**arrays, k=k, v=v, rotary_cos=cos, rotary_sin=sin, backend=backend)
        both.append(arrays["k_cache"].view(np.uint8))
    assert (both[0] == both[1]).all()


def changed(**how: Any) -> str:
    """What a call with some other arguments says."""
    kernel, arrays = caches(how.pop("dtype", "f16"))
    arrays |= {"backend": "interpreter"} | how
    given = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(LaunchError) as caught:
        kernel.launch(**given)
    return str(caught.value).removeprefix("DecodeKernel.launch: ")


def test_scales_go_with_caches_of_one_byte() -> None:
    wide = {name: caches()[1][name].astype(np.float16) for name in ("k_cache", "v_cache")}
    assert changed(v_scale=None) == (
        "v_scale must be given for a cache of float8_e4m3fn: what its numbers are multiplied by"
    )
    assert changed(**wide) == (
        "2 problems\n"
        f"  k_scale is for a cache of {FP8_ARRAYS}, got float16; leave it out\n"
        f"  v_scale is for a cache of {FP8_ARRAYS}, got float16; leave it out"
    )
    assert changed(v_cache=wide["v_cache"]) == (
        "k_cache and v_cache must be of one type, got float8_e4m3fn and float16"
    )
    assert changed(k_scale=np.array([1, -1], np.float32)) == (
        "k_scale must hold finite numbers above 0, got [1.0, -1.0]"
    )
    assert changed(k_scale=np.ones(3, np.float32)) == (
        "k_scale must be [kv_heads] = [2], or of a shape that broadcasts to it, got [3]"
    )
    assert changed(v_scale=np.array(1.0)) == (
        "v_scale must be float32, got float64; convert with v_scale.astype('float32')"
    )


def test_what_kernels_do_not_take_is_refused() -> None:
    assert changed(dtype="f32") == (
        "q must be float16 or bfloat16 for a cache of float8_e4m3fn with backend 'interpreter', got "
        "float32; convert it, or use backend='cpu'"
    )
    k = caches()[1]["k_cache"]
    bytes_of_k = np.zeros(k.nbytes + 16, np.uint8)
    begin = 1 - bytes_of_k.ctypes.data % 8 + 8
    moved = bytes_of_k[begin : begin + k.nbytes].view(E4M3.numpy).reshape(k.shape)
    assert changed(k_cache=moved) == (
        f"rows of k_cache must begin at multiples of 8 bytes for backend 'interpreter', got address "
        f"{moved.ctypes.data:#x} and strides {list(moved.strides)}; copy it with k_cache.copy()"
    )
    older = flash.DecodeKernel(flash.AttentionConfig(DIM, DIM_V, dtype="f16", causal=True, target="sm_80"))
    with pytest.raises(LaunchError) as caught:
        older.launch(**caches()[1], backend="interpreter")
    assert str(caught.value) == (
        "DecodeKernel.launch: a cache of 'e4m3' needs sm_89 or later, got sm_80; use a cache of the "
        "queries' type, or backend='cpu'"
    )
