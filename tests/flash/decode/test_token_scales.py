"""Caches of one byte an element whose tokens have scales, attended to by `DecodeKernel.launch`."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_attention_is_accurate
from numpy.typing import NDArray

import flash
from flash.calls.step import Step
from flash.contract.catalogue import build
from flash.decode.plan import CacheCall, kernel_of, oldest_target
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.operands.dtypes import DTYPES, E4M3, FP8_DTYPES, DType
from ptxgen.arrays.views import view
from ptxgen.errors import LaunchError
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = pytest.mark.usefixtures("unproved")

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V, ROWS = 2, 4, 2, 24, 16, 80
USED = np.array([77, 20], np.int32)
# Pages of 8 rows, in no order, one of which no sequence has.
TABLE = np.array([[13, 0, 17, 1, 19, 3, 9, 14, 20, 11], [2, 8, 4, 5, 6, 16, 10, 7, 12, 18]], np.int32)
PAGE = 8


@pytest.fixture(autouse=True)
def sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch on the interpreter is under all sanitizers."""
    monkeypatch.setattr(Step, "interpret", functools.partialmethod(Step.interpret, sanitize=True))


def caches(dtype: str = "f16", stored: DType = E4M3, queries: int = 1) -> dict[str, Any]:
    """The arrays of a call: scales that are 2**20 apart, some of them 0, and NaN behind the last key.

    The scores of small scales are as large as others, so that their values count: the largest weights are
    those of values with small scales, too.
    """
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.standard_normal(shape, np.float32)
        for shape in (
            (BATCH, HEADS, queries, DIM),
            (BATCH, KV_HEADS, ROWS, DIM),
            (BATCH, KV_HEADS, ROWS, DIM_V),
        )
    )
    k_scale, v_scale = (
        2.0 ** rng.uniform(*powers, (BATCH, KV_HEADS, ROWS)) for powers in ((-18, 2), (-16, 4))
    )
    v_scale[:, :, 3::7] = 0
    k_scale[:, :, 5::9] = 0
    arrays = {
        "q": q.astype(DTYPES[dtype].numpy),
        "k_cache": k.astype(stored.numpy),
        "v_cache": v.astype(stored.numpy),
        "seqused_k": USED,
        "k_scale": k_scale.astype(np.float32),
        "v_scale": v_scale.astype(np.float32),
    }
    for b, used in enumerate(USED):
        for name in ("k_cache", "v_cache", "k_scale", "v_scale"):
            arrays[name][b, :, used:] = np.nan
    return arrays


def in_pages(array: Array) -> Array:
    """The rows of a contiguous cache, or its scales, in pages, as `TABLE` says; the spare page has NaN."""
    _, heads, rows, *dim = array.shape
    pages = np.full((TABLE.size + 1, heads, PAGE, *dim), np.nan, np.float32).astype(array.dtype)
    pages[TABLE] = array.reshape(BATCH, heads, rows // PAGE, PAGE, *dim).swapaxes(1, 2)
    return pages


def paged(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a call with the cache in pages."""
    names = ("k_cache", "v_cache", "k_scale", "v_scale")
    return arrays | {name: in_pages(arrays[name]) for name in names} | {"block_table": TABLE}


def kernel_for(dtype: str, **how: Any) -> flash.DecodeKernel:
    return flash.DecodeKernel(flash.AttentionConfig(DIM, DIM_V, dtype=dtype, causal=True, **how))


def assert_attends(found: tuple[Array, Array], arrays: dict[str, Any], splits: int, **features: Any) -> None:
    """Each item attends to the numbers in its rows of the caches, each row times its scale."""
    out, lse = found
    dtype = {"float16": "f16", "bfloat16": "bf16"}[out.dtype.name]
    for b in range(BATCH):
        keys, values = (
            arrays[f"{name}_cache"][b, :, : USED[b]].astype(np.float32)
            * arrays[f"{name}_scale"][b, :, : USED[b], None]
            for name in "kv"
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
            **features,
        )


@pytest.mark.judged
@pytest.mark.sample(4, gate=4)
@pytest.mark.parametrize(("backend", "splits"), [("cpu", 1), ("interpreter", 1), ("interpreter", 3)])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
@pytest.mark.parametrize("queries", [1, 3])
def test_numbers_of_each_token_are_multiplied_by_its_scales(
    backend: Any, dtype: str, splits: int, in_pages: bool, stored: DType, queries: int
) -> None:
    arrays = caches(dtype, stored, queries)
    given = paged(arrays) if in_pages else arrays
    found = kernel_for(dtype).launch(**given, splits=splits, return_lse=True, backend=backend)
    assert_attends(found, arrays, splits)


@pytest.mark.judged
@pytest.mark.parametrize("how", [{"tile": 16, "stages": 2}, {"tile": 16, "softcap": 3.0}])
def test_every_kind_of_kernel_has_the_scales_of_its_stage(how: dict[str, Any]) -> None:
    arrays = caches("f16", queries=2)
    kernel = kernel_for("f16", **how)
    found = kernel.launch(**arrays, return_lse=True, backend="interpreter")
    softcap = {"softcap": how["softcap"]} if "softcap" in how else {}
    assert_attends(found, arrays, 1, **softcap)


@pytest.mark.judged
def test_small_values_count_behind_large_ones_that_hardly_weigh() -> None:
    """The weights of large values are 2**-29 of the others, whose scales are 2**-20 of theirs; the shift of
    the softmax moves from tile to tile, up and down with the scales.
    """
    arrays = caches("f16")
    arrays["q"][...] = 1
    arrays["k_cache"][...] = 1
    turn = np.arange(ROWS) // 16 % 2 == 0
    arrays["k_scale"][...] = np.where(turn, 0.0, 20 / DIM**0.5)
    arrays["v_scale"][...] = np.where(turn, 1.0, 2.0**-20)
    arrays["v_cache"][...] = np.abs(arrays["v_cache"].astype(np.float32)).astype(E4M3.numpy)
    for b, used in enumerate(USED):
        arrays["v_scale"][b, :, used:] = np.nan
    for reverse in (False, True):
        if reverse:
            arrays["k_scale"] = np.roll(arrays["k_scale"], 16, axis=2)
            arrays["v_scale"][:, :, : USED.min()] = np.roll(arrays["v_scale"], 16, axis=2)[:, :, : USED.min()]
            arrays["v_scale"] = np.nan_to_num(arrays["v_scale"], nan=0.5)
        found = kernel_for("bf16", tile=16).launch(
            **arrays | {"q": arrays["q"].astype(DTYPES["bf16"].numpy)}, return_lse=True, backend="interpreter"
        )
        for b in range(BATCH):
            s = arrays["k_scale"][b, 0, : USED[b]].astype(np.float64) * DIM**0.5
            p = np.exp(s - s.max())
            p /= p.sum()
            for head in range(KV_HEADS):
                v = arrays["v_cache"][b, head, : USED[b]].astype(np.float64)
                wanted = (p * arrays["v_scale"][b, head, : USED[b]]) @ v
                got = found[0][b, head * HEADS // KV_HEADS, 0].astype(np.float64)
                np.testing.assert_allclose(got, wanted, rtol=2.0**-7)


def test_tokens_of_permuted_pages_give_the_same_bits() -> None:
    arrays = caches()
    outs = [kernel_for("f16").launch(**given, backend="interpreter") for given in (arrays, paged(arrays))]
    assert (outs[0].view(np.uint16) == outs[1].view(np.uint16)).all()


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("count", [2, 19], ids=["in place", "before"])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
def test_new_rows_are_divided_by_the_largest_of_each(backend: Any, count: int, stored: DType) -> None:
    arrays, most = paged(caches("f16", stored)), np.float32(ml_dtypes.finfo(stored.numpy).max)
    arrays["q"] = arrays["q"].repeat(count, 2)
    rng = np.random.default_rng(2)
    k, v = (rng.standard_normal((BATCH, KV_HEADS, count, d)).astype(np.float16) for d in (DIM, DIM_V))
    k[0, 0, 0, :3] = 300.0, -np.inf, np.nan
    k[1, 1, 1] = 0
    v[0, 1, 1] = np.nan
    kernel_for("f16").launch(**arrays, k=k, v=v, backend=backend)
    for name, new in (("k", k.astype(np.float32)), ("v", v.astype(np.float32))):
        sizes = np.where(np.isfinite(new), np.abs(new), 0).max(-1)
        scales = np.maximum(sizes / most, np.float32(2.0**-126))
        codes = np.clip(new / scales[..., None], -most, most).astype(stored.numpy).view(np.uint8)
        codes[np.isnan(new)] = 0x7F
        for b in range(BATCH):
            rows = np.arange(USED[b] - count, USED[b])
            at = TABLE[b, rows // PAGE], slice(None), rows % PAGE
            assert (arrays[f"{name}_scale"][at] == scales[b].T).all()
            assert (arrays[f"{name}_cache"][at].view(np.uint8) == codes[b].swapaxes(0, 1)).all()


def test_infinity_of_a_value_is_multiplied_by_the_scale_of_its_token() -> None:
    arrays = caches("f16", [*FP8_DTYPES.values()][-1], 2)
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
# what is refused


def changed(**how: Any) -> str:
    """What a call with some other arguments says."""
    given = caches() | {"backend": "interpreter"} | how
    with pytest.raises(LaunchError) as caught:
        kernel_for("f16").launch(**given)
    return str(caught.value).removeprefix("DecodeKernel.launch: ")


def test_scales_of_tokens_lie_as_their_rows_do() -> None:
    right = caches()["k_scale"]
    assert changed(k_scale=right[:, :, :-1]) == (
        "k_scale must be [sequences, kv_heads, capacity] = [2, 2, 80], got [2, 2, 79]"
    )
    assert changed(v_scale=np.float32([1.0])) == (
        "k_scale and v_scale must both be of heads or both of tokens, got shapes [2, 2, 80] and [1]"
    )
    assert changed(v_scale=right.astype(np.float64)) == (
        "v_scale must be float32, got float64; convert with v_scale.astype('float32')"
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_the_scale_of_a_key_is_a_number(wrong: float) -> None:
    scales = caches()["v_scale"]
    scales[1, 0, 19] = wrong
    assert changed(v_scale=scales) == (
        f"v_scale must hold finite numbers of at least 0 for the keys of a sequence, got {wrong}"
    )
    in_pages_too = paged(caches())
    in_pages_too["v_scale"][TABLE[1, 2], 0, 3] = wrong
    assert changed(**in_pages_too) == (
        f"v_scale must hold finite numbers of at least 0 for the keys of a sequence, got {wrong}"
    )


def test_scales_are_written_with_new_rows() -> None:
    new = {n: np.zeros((BATCH, KV_HEADS, 1, d), np.float16) for n, d in (("k", DIM), ("v", DIM_V))}
    fixed = caches()["k_scale"]
    fixed.flags.writeable = False
    assert changed(**new, k_scale=fixed) == (
        "k_scale must be writable where there are new rows, got a read-only array; pass a writable one"
    )
    both = caches()["k_scale"]
    assert changed(**new, k_scale=both, v_scale=both) == (
        "k_scale must not share memory with v_scale where there are new rows; pass an array of its own"
    )


# ------------------------------------------------------------------------------------------
# the kernels


def call_of(dtype: str, dim: int, page_size: int, stored: DType, queries: int = 1) -> CacheCall:
    config = flash.AttentionConfig(dim, dtype=dtype, causal=True)
    q = np.zeros((1, 8, queries, dim), config.element.numpy)
    shape = (4, 1, page_size or 64)
    operands = {"seqused_k": np.zeros(1, np.int32)}
    operands |= {name: np.ones(shape, np.float32) for name in ("k_scale", "v_scale")}
    if page_size:
        operands["block_table"] = np.zeros((1, 4), np.int32)
    views = {name: view(array, name) for name, array in operands.items()}
    k, v = (view(np.zeros((*shape, dim), stored.numpy), "cache") for _ in range(2))
    return CacheCall(config, view(q, "q"), k, v, view(np.zeros_like(q), "out"), {}, views, page_size, 64, 1.0)


@pytest.mark.sample(0, gate=2)
@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("dim", "page_size"), [(64, 0), (128, 16), (256, 16)])
@pytest.mark.parametrize("queries", [1, 200])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
def test_kernels_are_proved_and_do_not_spill(
    dim: int, page_size: int, queries: int, dtype: str, name: str, stored: DType, assembler: Assembler
) -> None:
    if target(name).sm < oldest_target(stored).sm:
        pytest.skip("sm_80 does not convert e4m3")
    kernel = kernel_of(call_of(dtype, dim, page_size, stored, queries), target(name), 4)
    made = build(kernel)
    assert made.proof.complete
    assert made.global_proof.complete
    usage = assembler.assemble(made.text, name).kernel(kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0
