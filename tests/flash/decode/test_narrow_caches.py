"""`DecodeKernel.launch` over caches of one byte an element, of whose numbers each head or each token has a
scale.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_items_are_accurate
from kernel_runs import assert_no_spill, in_pages
from numpy.typing import NDArray
from refusals import refusal

import flash
from flash.calls.step import Step
from flash.contract.catalogue import build
from flash.decode.plan import AppendCall, CacheCall, append_step, kernel_of, oldest_target
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.host.blocks import in_blocks, of_blocks
from flash.host.stored_rows import stored as stored_rows
from flash.operands.blocks import (
    BLOCK_TYPES,
    CACHED_DTYPES,
    SCALED_ARRAYS,
    SCALED_DTYPES,
    SCALED_NAMES,
    BlockType,
    block_type,
)
from flash.operands.dtypes import DTYPES, E4M3, E5M2, DType
from ptxgen.arrays.views import view
from ptxgen.errors import PtxGenError
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = pytest.mark.usefixtures("unproved")

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V, ROWS, PAGE = 2, 4, 2, 24, 16, 80, 8
USED = np.array([77, 20], np.int32)
TABLE = np.array([[13, 0, 17, 1, 19, 3, 9, 14, 20, 11], [2, 8, 4, 5, 6, 16, 10, 7, 12, 18]], np.int32)
OF_ROWS = ("k_cache", "v_cache", "k_scale", "v_scale")
PER = pytest.mark.parametrize("per_token", [False, True], ids=["head", "token"])
EITHER = pytest.mark.parametrize("backend", ["cpu", "interpreter"])
STORED = pytest.mark.parametrize("stored", SCALED_DTYPES.values(), ids=list(SCALED_DTYPES))
INTEGERS = 40.0  # a number of int8 / a number of the problem


@pytest.fixture(autouse=True)
def sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch on the interpreter is under all sanitizers."""
    monkeypatch.setattr(Step, "interpret", functools.partialmethod(Step.interpret, sanitize=True))


def caches(
    dtype: str = "f16",
    stored: DType = E4M3,
    queries: int = 1,
    *,
    per_token: bool = True,
    dims: tuple[int, int] = (DIM, DIM_V),
) -> dict[str, Any]:
    """The arrays of a call: scales of tokens that are 2**20 apart, some of them 0, or scales of heads; and
    NaN after the last key.

    The scores of small scales are as large as others, so that their values count: the largest weights are
    those of values with small scales, too.
    """
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal((BATCH, *shape), np.float32)
        for shape in ((HEADS, queries, dims[0]), *((KV_HEADS, ROWS, dim) for dim in dims))
    )
    k_scale, v_scale = np.array([0.5, 2.0]), np.array(0.03)
    if per_token:
        k_scale, v_scale = (2.0 ** rng.uniform(*of, (BATCH, KV_HEADS, ROWS)) for of in ((-18, 2), (-16, 4)))
        v_scale[:, :, 3::7] = 0
        k_scale[:, :, 5::9] = 0
    if stored.is_finite:
        k, v = ((INTEGERS * x).clip(-127, 127).round() for x in (k, v))
        k_scale, v_scale = k_scale / INTEGERS, np.asarray(v_scale / INTEGERS)
    arrays = {
        "q": q.astype(DTYPES[dtype].numpy),
        "k_cache": k.astype(stored.numpy),
        "v_cache": v.astype(stored.numpy),
        "seqused_k": USED,
        "k_scale": k_scale.astype(np.float32),
        "v_scale": v_scale.astype(np.float32),
    }
    for b, used in enumerate(USED):
        for name in OF_ROWS if per_token else OF_ROWS[:2]:
            arrays[name][b, :, used:] = np.nan if arrays[name].dtype.kind != "i" else 127
    return arrays


def paged(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call with the cache in pages, one of which no sequence has: it holds NaN."""

    def moved(array: Array) -> Array:
        wide = array if array.ndim == 4 else array[..., None]
        like = E4M3.numpy if array.dtype.kind == "i" else array.dtype  # of which `in_pages` has a NaN
        pages = in_pages(wide.view(like), PAGE, TABLE, spare=1).view(array.dtype)
        return pages if array.ndim == 4 else pages[..., 0]

    names = [name for name in OF_ROWS if arrays[name].ndim > 1]
    return arrays | {name: moved(arrays[name]) for name in names} | {"block_table": TABLE}


def kernel_for(dtype: str, **how: Any) -> flash.DecodeKernel:
    return flash.DecodeKernel(flash.AttentionConfig(DIM, DIM_V, dtype=dtype, causal=True, **how))


def assert_attends(found: tuple[Array, Array], arrays: dict[str, Any], splits: int, **features: Any) -> None:
    """Each item attends to the numbers in its rows of the caches, times their scales."""
    dtype = {"float16": "f16", "bfloat16": "bf16"}[found[0].dtype.name]

    def rows(name: str, b: int) -> Array:
        scale, numbers = arrays[f"{name}_scale"], arrays[f"{name}_cache"][b, :, : USED[b]]
        of_rows = scale[b, :, : USED[b], None] if scale.ndim > 1 else scale[..., None, None]
        return (numbers.astype(np.float32) * of_rows)[None]

    arithmetic = arithmetic_of(dtype, parts=PARTS_OF_F32 * (splits > 1))
    of_items = [(rows("k", b), rows("v", b)) for b in range(BATCH)]
    assert_items_are_accurate(*found, arrays["q"], of_items, causal=True, arithmetic=arithmetic, **features)


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.sample(6, gate=8)
@pytest.mark.parametrize(("backend", "splits"), [("cpu", 1), ("interpreter", 1), ("interpreter", 3)])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("in_pages", [False, True])
@STORED
@pytest.mark.parametrize("queries", [1, 3])
@PER
def test_numbers_are_multiplied_by_the_scales(
    backend: Any, dtype: str, splits: int, in_pages: bool, stored: DType, queries: int, per_token: bool
) -> None:
    arrays = caches(dtype, stored, queries, per_token=per_token)
    call = paged(arrays) if in_pages else arrays
    result = kernel_for(dtype).launch(**call, splits=splits, return_lse=True, backend=backend)
    assert_attends(result, arrays, splits)


@pytest.mark.judged
def test_queries_of_long_rows_are_converted_in_two_passes() -> None:
    arrays = caches("bf16", dims=(264, 8))
    kernel = flash.DecodeKernel(flash.AttentionConfig(264, 8, dtype="bf16", causal=True))
    assert_attends(kernel.launch(**arrays, return_lse=True, backend="interpreter"), arrays, 1)


@pytest.mark.judged
@pytest.mark.parametrize("how", [{"stages": 2}, {"softcap": 3.0}, {"target": "sm_75"}], ids=str)
def test_every_kind_of_kernel_has_the_scales_of_its_stage(how: dict[str, Any]) -> None:
    arrays = caches("f16", E5M2 if "target" in how else E4M3, queries=2)
    result = kernel_for("f16", tile=16, **how).launch(**arrays, return_lse=True, backend="interpreter")
    assert_attends(result, arrays, 1, softcap=how.get("softcap"))


@pytest.mark.judged
def test_small_values_count_behind_large_ones_that_hardly_weigh() -> None:
    """The weights of large values are 2**-29 of the others, whose scales are 2**-20 of theirs; the shift of
    the softmax moves from tile to tile, up and down with the scales.
    """
    arrays = caches("bf16")
    arrays["q"][...] = 1
    arrays["k_cache"][...] = 1
    in_even_tile = np.arange(ROWS) // 16 % 2 == 0
    arrays["k_scale"][...] = np.where(in_even_tile, 0.0, 20 / DIM**0.5)
    arrays["v_scale"][...] = np.where(in_even_tile, 1.0, 2.0**-20)
    arrays["v_cache"][...] = np.abs(arrays["v_cache"].astype(np.float32)).astype(E4M3.numpy)
    for b, used in enumerate(USED):
        arrays["v_scale"][b, :, used:] = np.nan
    for reverse in (False, True):
        if reverse:
            arrays["k_scale"] = np.roll(arrays["k_scale"], 16, axis=2)
            arrays["v_scale"][:, :, : USED.min()] = np.roll(arrays["v_scale"], 16, axis=2)[:, :, : USED.min()]
            arrays["v_scale"] = np.nan_to_num(arrays["v_scale"], nan=0.5)
        result = kernel_for("bf16", tile=16).launch(**arrays, return_lse=True, backend="interpreter")
        for b, used in enumerate(USED):
            s = arrays["k_scale"][b, 0, :used].astype(np.float64) * DIM**0.5
            p = np.exp(s - s.max())
            p /= p.sum()
            for head in range(KV_HEADS):
                v = arrays["v_cache"][b, head, :used].astype(np.float64)
                wanted = (p * arrays["v_scale"][b, head, :used]) @ v
                got = result[0][b, head * HEADS // KV_HEADS, 0].astype(np.float64)
                np.testing.assert_allclose(got, wanted, rtol=2.0**-7)


@pytest.mark.slow
def test_tokens_of_permuted_pages_give_the_same_bits() -> None:
    arrays = caches()
    outs = [kernel_for("f16").launch(**call, backend="interpreter") for call in (arrays, paged(arrays))]
    assert (outs[0].view(np.uint16) == outs[1].view(np.uint16)).all()


@pytest.mark.slow
@pytest.mark.sample(8, gate=16)
@EITHER
@pytest.mark.parametrize("count", [2, 19], ids=["in place", "before"])
@STORED
@PER
def test_new_rows_are_divided_by_their_scales_and_rounded(
    backend: Any, count: int, stored: DType, per_token: bool
) -> None:
    """The scales of heads; or, per token, the largest finite magnitude of a row over the type's, as
    `flash.quantize_rows` has them.
    """
    arrays = paged(caches("f16", stored, per_token=per_token))
    of = (ml_dtypes.iinfo if stored.is_finite else ml_dtypes.finfo)(stored.numpy)
    most = np.float32(of.max)
    arrays["q"] = arrays["q"].repeat(count, 2)
    rng = np.random.default_rng(2)
    k, v = (rng.standard_normal((BATCH, KV_HEADS, count, d)).astype(np.float16) for d in (DIM, DIM_V))
    k[0, 0, 0, :4] = 300.0, -np.inf, np.nan, 60000.0  # 120,000 with the scale of the head
    k[1, 1, 1] = 0
    v[0, 1, 1] = np.nan
    kernel_for("f16").launch(**arrays, k=k, v=v, backend=backend)
    for name, new in (("k", k.astype(np.float32)), ("v", v.astype(np.float32))):
        if per_token:
            sizes = np.where(np.isfinite(new), np.abs(new), 0).max(-1)
            scales = np.maximum(sizes / most, np.float32(2.0**-126))
        else:
            scales = np.broadcast_to(arrays[f"{name}_scale"][..., None], new.shape[:3])
        numbers = np.clip(new / scales[..., None], -most, most)
        numbers = np.nan_to_num(np.rint(numbers), nan=0.0) if stored.is_finite else numbers
        codes = numbers.astype(stored.numpy).view(np.uint8)
        codes[np.isnan(new)] = 0 if stored.is_finite else 0x7F
        rows, of_rows = flash.quantize_rows(new, stored.name)  # type: ignore[arg-type]
        assert not per_token or ((rows.view(np.uint8) == codes).all() and (of_rows == scales).all())
        for b in range(BATCH):
            rows = np.arange(USED[b] - count, USED[b])
            at = TABLE[b, rows // PAGE], slice(None), rows % PAGE
            assert not per_token or (arrays[f"{name}_scale"][at] == scales[b].T).all()
            assert (arrays[f"{name}_cache"][at].view(np.uint8) == codes[b].swapaxes(0, 1)).all()


def test_new_keys_are_rotated_in_f32_and_rounded_once() -> None:
    both = []
    for backend in ("cpu", "interpreter"):
        arrays = caches(per_token=False)
        k, v = (np.full((BATCH, KV_HEADS, 1, d), 1.3, np.float16) for d in (DIM, DIM_V))
        cos, sin = flash.rotary_tables(ROWS, DIM)
        kernel_for("f16").launch(**arrays, k=k, v=v, rotary_cos=cos, rotary_sin=sin, backend=backend)
        both.append(arrays["k_cache"].view(np.uint8))
    assert (both[0] == both[1]).all()


def test_infinity_of_a_value_is_multiplied_by_the_scale_of_its_token() -> None:
    arrays = caches("f16", E5M2, 2)
    arrays["v_scale"][0, :, USED[0] - 1] = 1.0
    kernel = kernel_for("f16")
    expected = kernel.launch(**arrays, backend="interpreter").astype(np.float32)
    arrays["v_cache"][0, 0, USED[0] - 1, :2] = np.inf, -np.inf  # the last key: of the second query
    out = kernel.launch(**arrays, backend="interpreter").astype(np.float32)
    assert (out[:, :, 0] == expected[:, :, 0]).all()
    np.testing.assert_array_equal(out[0, :2, 1, :2], [[np.inf, -np.inf]] * 2)
    assert (out[0, :2, 1, 2:] == expected[0, :2, 1, 2:]).all()
    arrays["v_scale"][0, :, USED[0] - 1] = 0.0
    out = kernel.launch(**arrays, backend="interpreter").astype(np.float32)
    assert np.isnan(out[0, :2, 1, :2]).all()


# ------------------------------------------------------------------------------------------
# e5m2: infinities, which e4m3 does not have, and conversion without an instruction for it


def edges() -> Array:
    """Each number of e5m2, the middle between neighbours, and the f32 next to these, either sign; further
    what is beyond the largest, and what is no number.
    """
    numbers = np.arange(0x7C, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    at = np.concatenate([numbers, middles, np.float32([61439, 61440, 65504, 65520, 1e30, np.inf, 2.0**-140])])
    result = np.concatenate([at, np.nextafter(at, np.float32(0)), np.nextafter(at, np.float32(np.inf))])
    return np.concatenate([result, -result, np.float32([np.nan])])


@pytest.mark.parametrize("name", ["sm_75", "sm_89"])
def test_numbers_are_rounded_once_whatever_the_target_has(name: str) -> None:
    """Scales of 1 and 2, so that quotients are exact or subnormal."""
    x = edges()
    rows = -(-x.size // 256)
    new = np.resize(x, (1, 1, rows, 256))
    of_sides = [np.zeros((1, 1, rows, 256), E5M2.numpy) for _ in "kv"]
    scales = [np.float32([1.0]), np.float32([2.0])]
    operands = {"seqused_k": np.array([rows], np.int32), "k_scale": scales[0], "v_scale": scales[1]}
    arrays = {"K_NEW": new, "V_NEW": new, "K": of_sides[0], "V": of_sides[1], **operands}
    call = AppendCall({name: view(array, name) for name, array in arrays.items()}, page_size=0)
    append_step(target(name), call).interpret()
    for cache, scale in zip(of_sides, scales, strict=True):
        wanted = stored_rows(new, E5M2, scale)
        assert (cache.view(np.uint8) == wanted.view(np.uint8)).all()
        assert (cache.view(np.uint8)[np.isnan(new)] == 0x7F).all()


def two_queries() -> tuple[flash.DecodeKernel, dict[str, Any]]:
    """Two causal queries to 40 keys of one head, which are small numbers."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, 8), np.float32) / 4 for n in (2, 40, 40))
    arrays = {"q": q.astype(np.float16), "k_cache": k.astype(E5M2.numpy), "v_cache": v.astype(E5M2.numpy)}
    arrays |= {"k_scale": np.float32([0.5]), "v_scale": np.float32([2.0])}
    kernel = flash.DecodeKernel(flash.AttentionConfig(8, dtype="f16", causal=True))
    return kernel, {**arrays, "seqused_k": np.array([40], np.int32)}


@EITHER
def test_infinity_and_nan_of_a_value_reach_the_rows_that_see_its_key(backend: Any) -> None:
    kernel, arrays = two_queries()
    expected = kernel.launch(**arrays, backend=backend).astype(np.float32)
    arrays["v_cache"][0, 0, -1, :3] = np.inf, -np.inf, np.nan  # the last key: of the second query
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    assert (out[0, 0, 0] == expected[0, 0, 0]).all()
    np.testing.assert_array_equal(out[0, 0, 1, :3], [np.inf, -np.inf, np.nan])
    assert (out[0, 0, 1, 3:] == expected[0, 0, 1, 3:]).all()


@EITHER
def test_infinity_of_a_key_makes_the_rows_that_see_it_nan_or_leaves_it_out(backend: Any) -> None:
    """A score of infinity is NaN beside the others, one of minus infinity a weight of 0."""
    kernel, arrays = two_queries()
    arrays["q"][...] = np.abs(arrays["q"]) + np.float16(0.1)
    arrays["k_cache"][0, 0, -1, 0] = -np.inf
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    shorter = dict(arrays, seqused_k=np.array([39], np.int32), q=arrays["q"][:, :, 1:])
    without = kernel.launch(**shorter, backend=backend).astype(np.float32)
    np.testing.assert_allclose(out[0, 0, 1], without[0, 0, 0], rtol=2e-3, atol=1e-5)
    arrays["k_cache"][0, 0, -1, 0] = np.inf
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    assert np.isnan(out[0, 0, 1]).all()
    assert np.isfinite(out[0, 0, 0]).all()


# ------------------------------------------------------------------------------------------
# what is refused

WIDE = {name: caches()[name].astype(np.float16) for name in ("k_cache", "v_cache")}
NEW = {n: np.zeros((BATCH, KV_HEADS, 1, d), np.float16) for n, d in (("k", DIM), ("v", DIM_V))}
OF_TOKENS = caches()["k_scale"]
FIXED = OF_TOKENS.copy()
FIXED.flags.writeable = False
# Whether the scales are of tokens, the arrays that are others, and what is said.
REFUSED: dict[str, tuple[bool, dict[str, Any], str]] = {
    "no scale": (
        False,
        {"v_scale": None},
        "v_scale must be given for a cache of float8_e4m3fn: what its numbers are multiplied by",
    ),
    "scales of another cache": (
        False,
        WIDE,
        "2 problems\n"
        f"  k_scale is for a cache of {SCALED_ARRAYS}, got float16; leave it out\n"
        f"  v_scale is for a cache of {SCALED_ARRAYS}, got float16; leave it out",
    ),
    "two types": (
        False,
        {"v_cache": WIDE["v_cache"]},
        "k_cache and v_cache must be of one type, got float8_e4m3fn and float16",
    ),
    "a negative scale": (
        False,
        {"k_scale": np.array([1, -1], np.float32)},
        "k_scale must hold finite numbers above 0, got [1.0, -1.0]",
    ),
    "shape": (
        False,
        {"k_scale": np.ones(3, np.float32)},
        "k_scale must be [kv_heads] = [2], or of a shape that broadcasts to it, got [3]",
    ),
    "type": (
        False,
        {"v_scale": np.array(1.0)},
        "v_scale must be float32, got float64; convert with v_scale.astype('float32')",
    ),
    "queries": (
        False,
        {"q": caches("f32")["q"]},
        "q must be float16 or bfloat16 for a cache of float8_e4m3fn with backend 'interpreter', got "
        "float32; convert it, or use backend='cpu'",
    ),
    "shape of tokens": (
        True,
        {"k_scale": OF_TOKENS[:, :, :-1]},
        "k_scale must be [sequences, kv_heads, capacity] = [2, 2, 80], got [2, 2, 79]",
    ),
    "heads and tokens": (
        True,
        {"v_scale": np.float32([1.0])},
        "k_scale and v_scale must both be of heads or both of tokens, got shapes [2, 2, 80] and [1]",
    ),
    "type of tokens": (
        True,
        {"v_scale": OF_TOKENS.astype(np.float64)},
        "v_scale must be float32, got float64; convert with v_scale.astype('float32')",
    ),
    "read-only": (
        True,
        {**NEW, "k_scale": FIXED},
        "k_scale must be writable where there are new rows, got a read-only array; pass a writable one",
    ),
    "shared": (
        True,
        {**NEW, "k_scale": OF_TOKENS, "v_scale": OF_TOKENS},
        "k_scale must not share memory with v_scale where there are new rows; pass an array of its own",
    ),
}


def changed(per_token: bool = True, target: str | None = None, **how: Any) -> str:
    """What a call with some other arguments says."""
    arrays = caches(per_token=per_token) | {"backend": "interpreter"} | how
    dtype = "f32" if arrays["q"].dtype == np.float32 else "f16"
    arguments = {name: array for name, array in arrays.items() if array is not None}
    return refusal(kernel_for(dtype, target=target).launch, **arguments).removeprefix("DecodeKernel.launch: ")


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused(name: str) -> None:
    per_token, how, message = REFUSED[name]
    assert changed(per_token, **how) == message


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_the_scale_of_a_key_is_a_number(wrong: float) -> None:
    scales, of_pages = caches()["v_scale"], paged(caches())
    scales[1, 0, 19] = of_pages["v_scale"][TABLE[1, 2], 0, 3] = wrong
    for how in ({"v_scale": scales}, of_pages):
        assert changed(**how) == (
            f"v_scale must hold finite numbers of at least 0 for the keys of a sequence, got {wrong}"
        )


def test_addresses_and_targets_that_kernels_do_not_take_are_refused() -> None:
    k = caches()["k_cache"]
    bytes_of_k = np.zeros(k.nbytes + 16, np.uint8)
    begin = 1 - bytes_of_k.ctypes.data % 8 + 8
    moved = bytes_of_k[begin : begin + k.nbytes].view(E4M3.numpy).reshape(k.shape)
    assert changed(per_token=False, k_cache=moved) == (
        f"rows of k_cache must begin at multiples of 8 bytes for backend 'interpreter', got address "
        f"{moved.ctypes.data:#x} and strides {list(moved.strides)}; copy it with k_cache.copy()"
    )
    assert changed(per_token=False, target="sm_80") == (
        "a cache of 'e4m3' needs sm_89 or later, got sm_80; use a cache of the queries' type, or "
        "backend='cpu'"
    )


# ------------------------------------------------------------------------------------------
# the kernels


def call_of(
    dtype: str, dim: int, page_size: int, stored: DType = E4M3, queries: int = 1, *, per_token: bool = False
) -> CacheCall:
    config = flash.AttentionConfig(dim, dtype=dtype, causal=True)
    q = np.zeros((1, 8, queries, dim), config.element.numpy)
    shape = (4, 1, page_size or 64)
    operands = {"seqused_k": np.zeros(1, np.int32)}
    if stored.has_scales:
        operands |= {name: np.ones(shape if per_token else 1, np.float32) for name in ("k_scale", "v_scale")}
    if page_size:
        operands["block_table"] = np.zeros((1, 4), np.int32)
    views = {name: view(array, name) for name, array in operands.items()}
    k, v = (view(np.zeros((*shape, stored.in_row(dim)), stored.numpy), "cache") for _ in range(2))
    arrays = view(q, "q"), k, v, view(np.zeros_like(q), "out"), {}, views
    return CacheCall(config, *arrays, page_size, 64, 1.0, blocks=block_type(stored))


@pytest.mark.sample(0, gate=4)
@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("dim", "page_size"), [(64, 0), (128, 16), (256, 16)])
@pytest.mark.parametrize(("per_token", "queries"), [(False, 1), (True, 1), (True, 200)])
@pytest.mark.parametrize("stored", CACHED_DTYPES.values(), ids=list(CACHED_DTYPES))
def test_kernels_are_proved_and_do_not_spill(
    dim: int,
    page_size: int,
    per_token: bool,
    queries: int,
    dtype: str,
    name: str,
    stored: DType,
    assembler: Assembler,
) -> None:
    if per_token and not stored.has_scales:
        pytest.skip(f"tokens of {stored.name} have no scales")
    if target(name).sm < oldest_target(stored).sm:
        pytest.skip(f"{name} does not convert {stored.name}")
    if name == "sm_75" and dtype == "bf16":
        pytest.skip(f"{name} does not multiply {dtype}")
    call = call_of(dtype, dim, page_size, stored, queries, per_token=per_token)
    kernel = kernel_of(call, target(name), 4)
    assert build(kernel).proof.complete
    assert build(kernel).global_proof.complete
    assert_no_spill(kernel, assembler)


def test_a_kernel_that_widens_says_so_in_its_name() -> None:
    kernel = kernel_of(call_of("f16", 64, 0), target("sm_89"), 1)
    plain = replace(kernel, features=replace(kernel.features, kv_dtype=None))
    assert kernel.name == plain.name.replace("usedk", "usedk_kv_e4m3")


# ------------------------------------------------------------------------------------------
# blocks with scales in them

BLOCKS = pytest.mark.parametrize("blocks", BLOCK_TYPES.values(), ids=list(BLOCK_TYPES))
# What `gguf.quants.quantize` of gguf 0.19.0 makes of (7 i mod 32 - 15.5) * 0.37.
GGML = {
    "q8_0": "c82981baf42d669ad30c467fb2ec255e91cb043d77aae31d5689c3fc356fa2db144e",
    "q4_0": "bc3980c4f73b6ea2d5194c8fb3f72a6e91d5",
}


def with_blocks(blocks: BlockType, dtype: str = "f16") -> flash.DecodeKernel:
    kv_dtype: Any = blocks.name
    return flash.DecodeKernel(flash.AttentionConfig(64, dtype=dtype, causal=True), kv_dtype=kv_dtype)


def test_blocks_are_those_of_ggml() -> None:
    numbers = np.float32([(7 * i % 32 - 15.5) * 0.37 for i in range(32)])
    assert {n: flash.quantize_rows(numbers, n)[0].tobytes().hex() for n in GGML} == GGML


@BLOCKS
@pytest.mark.parametrize("count", [2, 19], ids=["in place", "before"])
def test_new_rows_become_blocks(blocks: BlockType, count: int) -> None:
    """Of rows with ties, zeros, largest numbers of either sign, numbers beyond f16 or subnormal, and with
    what is no number, the kernels write the bytes that numpy does.
    """
    new = np.random.default_rng(3).standard_normal((BATCH * KV_HEADS * count, 64)).astype(np.float32)
    new[1], new[2] = np.arange(64) / 2 - 15.5, 0
    new[3, :4], new[3, 40] = (-9, 9, np.inf, -np.inf), np.nan
    new[4, :3], new[4, 32:34], new[5], new[6, 7] = (9, -9, 4.5), (1e30, -2e5), 2.0**-130, 2.0**-126
    rows = new.reshape(BATCH, KV_HEADS, count, 64).astype(ml_dtypes.bfloat16)
    k, v = (np.full((BATCH, KV_HEADS, ROWS, blocks.in_row(64)), 0x7F, np.uint8) for _ in "kv")
    q = np.zeros((BATCH, HEADS, count, 64), rows.dtype)
    arrays = {"k_cache": k, "v_cache": v, "seqused_k": USED, "k": rows, "v": -rows}
    with_blocks(blocks, "bf16").launch(q, **arrays, backend="interpreter")
    for cache, written in ((k, rows), (v, -rows)):
        for b, used in enumerate(USED):
            assert (cache[b, :, used - count : used] == in_blocks(written[b], blocks)).all()
            assert (cache[b, :, : used - count] == 0x7F).all()
            assert (cache[b, :, used:] == 0x7F).all()


@EITHER
@BLOCKS
def test_a_scale_that_is_not_finite_reaches_the_rows_that_see_its_key(
    backend: Any, blocks: BlockType
) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (2, 40, 40))
    arrays = {"k_cache": in_blocks(k, blocks), "v_cache": in_blocks(v, blocks)}
    arrays |= {"q": q, "seqused_k": np.array([40], np.int32)}
    expected = with_blocks(blocks).launch(**arrays, backend=backend)
    arrays["v_cache"][0, 0, -1, :2] = np.float16([np.inf]).view(np.uint8)  # the last key: of the second query
    out = with_blocks(blocks).launch(**arrays, backend=backend)
    assert (out[0, 0, 0] == expected[0, 0, 0]).all()
    assert (out[0, 0, 1, 32:] == expected[0, 0, 1, 32:]).all()
    np.testing.assert_array_equal(out[0, 0, 1, :32], of_blocks(arrays["v_cache"][0, 0, -1], blocks)[:32])


def test_blocks_that_do_not_fit_are_refused() -> None:
    blocks = BLOCK_TYPES["q8_0"]
    config, rows = flash.AttentionConfig(64, dtype="f16"), np.zeros((1, 1, 8, 68), np.uint8)
    arrays: dict[str, Any] = {"k_cache": rows, "v_cache": rows.copy(), "seqused_k": np.array([8], np.int32)}
    q = np.zeros((1, 1, 1, 64), np.float16)
    one = np.ones(1, np.float32)
    for call, message in (
        (
            lambda: flash.DecodeKernel(config, kv_dtype="q8"),  # type: ignore[arg-type]
            "DecodeKernel: kv_dtype must be 'q8_0' or 'q4_0', or None for caches whose arrays have the type "
            "of their elements, got 'q8'; did you mean 'q8_0'?",
        ),
        (
            lambda: flash.quantize_rows(q[..., :40], "q8_0"),
            "quantize_rows: x must have rows of elements in multiples of 32, got shape [1, 1, 1, 40]",
        ),
        (
            lambda: flash.quantize_rows(q, "q5_0"),  # type: ignore[arg-type]
            f"quantize_rows: dtype must be one of {', '.join(map(repr, CACHED_DTYPES))}, got 'q5_0'; did you "
            "mean 'q8_0'?",
        ),
        (
            lambda: flash.KVCache(1, 1, 1, 40, 8, dtype="q4_0"),
            "KVCache: blocks of 'q4_0' have 32 elements, so head_dim and head_dim_v must be multiples of "
            "32, and head_dim_v at most 256, got 40 and 40; pad Q, K and V with zeros, or use another type",
        ),
        (
            lambda: flash.KVCache(1, 1, 1, 64, 8, dtype="q4_0", scale_per="token"),
            f"KVCache: scale_per='token' is for a cache of {SCALED_NAMES}, whose numbers have scales; "
            "leave it out",
        ),
        (
            lambda: with_blocks(blocks).launch(q, **arrays | {"v_cache": rows[..., :64]}),
            "DecodeKernel.launch: v_cache must be [sequences, kv_heads, capacity, head_dim_v / 32 * 34] = "
            "[1, 1, 8, 68], got [1, 1, 8, 64]",
        ),
        (
            lambda: with_blocks(blocks).launch(q, **arrays, k_scale=one, v_scale=one),
            "DecodeKernel.launch: 2 problems\n"
            f"  k_scale is for a cache of {SCALED_ARRAYS}, got uint8; leave it out\n"
            f"  v_scale is for a cache of {SCALED_ARRAYS}, got uint8; leave it out",
        ),
        (
            lambda: with_blocks(blocks, "f32").launch(q.astype(np.float32), **arrays, backend="interpreter"),
            "DecodeKernel.launch: q must be float16 or bfloat16 for a cache of q8_0 with backend "
            "'interpreter', got float32; convert it, or use backend='cpu'",
        ),
    ):
        assert refusal(call, error=PtxGenError) == message
