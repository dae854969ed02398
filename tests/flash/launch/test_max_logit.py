"""The largest score of each head, as calls on every backend return it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, kernel_on, on_device
from fake_driver import FakeDriver
from fp8_runs import SCALES, scaled
from judge import assert_close

import flash
from flash.contract.built_kernel import BuiltKernel
from flash.error_bound import F32_ARITHMETIC, arithmetic_of_config, max_logit_bound
from flash.launch import forward
from flash.launch.key_splits import Division
from flash.operands.dtype_names import Backend
from flash.operands.dtypes import E4M3
from flash.problem.features import SCALES as NAMES_OF_SCALES
from flash.problem.sequences import each_sequence
from flash.reference import max_logit_reference
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
BACKENDS: tuple[Backend, ...] = ("cpu", "compiled", "interpreter")


@pytest.fixture(autouse=True)
def _without_proofs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kernels of configs `how` are proved, which takes longer than to run them:
    tests/flash/kernels/test_max_logit.py proves those of other families.
    """
    if "how" not in request.fixturenames:
        monkeypatch.setattr(BuiltKernel, "require_proved", lambda _: None)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend of arrays on the host."""
    if request.param == "compiled":
        request.getfixturevalue("compiled")
    result: Backend = request.param
    return result


def problem(seed: int = 0, seq: int = 40, dtype: Any = np.float32, heads: int = 4, batch: int = 2) -> Any:
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, seq - 7, 16), (batch, 2, seq, 16), (batch, 2, seq, 16))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def judge(found: Array, q: Array, k: Array, arithmetic: Any = F32_ARITHMETIC, **how: Any) -> None:
    assert found.dtype == np.float32
    assert_close("max_logit", found, *max_logit_bound(q, k, arithmetic, **how))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_it_follows_out_and_lse(backend: Backend, layout: Any) -> None:
    q, k, v = problem()
    arguments = [x.swapaxes(1, 2) if layout == "bshd" else x for x in (q, k, v)]
    how: Any = {"backend": backend, "layout": layout, "causal": True, "window": (9, 0)}
    out, lse, max_logit = flash.attention(*arguments, return_lse=True, return_max_logit=True, **how)
    judge(max_logit, q, k, causal=True, window=(9, 0))
    plain, of_rows = flash.attention(*arguments, return_lse=True, **how)
    assert np.array_equal(out, plain)
    assert np.array_equal(lse, of_rows)
    _, alone = flash.attention(*arguments, return_max_logit=True, **how)
    assert np.array_equal(alone, max_logit)


def test_heads_of_arrays_without_a_batch_have_one_each(backend: Backend) -> None:
    q, k, v = (x[0] for x in problem(heads=2))
    _, result = flash.attention(q, k, v, return_max_logit=True, backend=backend)
    judge(result[None], q[None], k[None])


def test_there_is_none_without_a_query_or_a_key(backend: Backend) -> None:
    q, k, v = problem()
    for arguments in ((q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0])):
        _, result = flash.attention(*arguments, return_max_logit=True, backend=backend)
        assert result.shape == (2, 4)
        assert np.isneginf(result).all()
    _, result = flash.attention(q[:0], k[:0], v[:0], return_max_logit=True, backend=backend)
    assert result.shape == (0, 4)


def test_values_without_columns_leave_it_as_it_is(backend: Backend) -> None:
    q, k, v = problem()
    out, result = flash.attention(q, k, v[..., :0], return_max_logit=True, backend=backend)
    assert out.shape == (2, 4, 33, 0)
    judge(result, q, k)


@pytest.mark.parametrize("group", [1, 2])
def test_packed_sequences_have_one_for_each_head(backend: Backend, group: int) -> None:
    q, k, v = (x.swapaxes(1, 2).reshape(-1, x.shape[1], 16) for x in problem(heads=2 * group))
    ends = {"cu_seqlens_q": np.array([0, 5, 5, 40, 60], np.int32)}
    ends["cu_seqlens_k"] = np.array([0, 20, 31, 31, 80], np.int32)
    used = np.array([3, 0, 35, 20], np.int32)
    how: Any = {"seqused_q": used, "causal": True, "alibi_slopes": np.full((4, 2 * group), 0.1, np.float32)}
    _, result = flash.attention_varlen(q, k, v, **ends, **how, return_max_logit=True, backend=backend)
    assert result.shape == (4, 2 * group)
    for b, rows, keys in each_sequence(**ends, seqused_q=used, seqused_k=None):
        own = [x[rows_of].swapaxes(0, 1)[None] for x, rows_of in ((q, rows), (k, keys))]
        slopes = how["alibi_slopes"][b : b + 1]
        judge(result[b : b + 1], *own, causal=True, alibi_slopes=slopes)
    assert np.isneginf(result[1:3]).all()


def test_pages_are_read_through_their_table(backend: Backend) -> None:
    q, k, v = problem(seed=3, seq=48)
    table = np.array([[2, 0, 5], [4, 1, 3]], np.int32)
    pages = [np.empty((6, 16, 2, 16), np.float32) for _ in range(2)]
    for array, whole in zip(pages, (k, v), strict=True):
        for b, n in np.ndindex(2, 3):
            array[table[b, n]] = whole[b, :, 16 * n : 16 * n + 16].swapaxes(0, 1)
    used = np.array([48, 30], np.int32)
    packed = q.swapaxes(1, 2).reshape(-1, 4, 16)
    ends = np.array([0, 41, 82], np.int32)
    how: Any = {"block_table": table, "seqused_k": used, "softcap": 2.0, "backend": backend}
    _, result = flash.attention_varlen(packed, *pages, ends, return_max_logit=True, **how)
    for b, count in enumerate(used):
        judge(result[b : b + 1], q[b : b + 1], k[b : b + 1, :, :count], softcap=2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"splits": 3},
        {"splits": 3, "dtype": "f16"},
        {"splits": 2, "dtype": "bf16", "target": "sm_90a"},
        {"dtype": "f16", "target": "sm_90a", "scheduler": "static"},
        {"dtype": "f16", "target": "sm_90a", "scheduler": "ticket", "causal": True},
        {"dtype": "bf16", "target": "sm_90a", "pack_gqa": True, "causal": True},
        {"splits": 3, "pack_gqa": True, "dtype": "f16"},
    ],
    ids=str,
)
def test_ctas_that_share_a_head_join_what_they_find(how: dict[str, Any]) -> None:
    config = flash.AttentionConfig(16, return_max_logit=True, **how)
    heads = 4 if config.pack_gqa is True else 2
    q, k, v = problem(seq=300, dtype=config.element.numpy, batch=1, heads=heads)
    _, result = flash.AttentionKernel(config).launch(q, k, v, backend="interpreter")
    judge(result, q, k, arithmetic_of_config(config), causal=config.causal)


@pytest.mark.slow
@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("how", [{}, {"softcap": 3.0, "causal": True}], ids=str)
def test_scales_of_fp8_count(how: dict[str, Any], block: int | None) -> None:
    small: Any = {"dtype": "e4m3", "target": "sm_90a", "tile": 64, "block_q": 64}
    config = flash.AttentionConfig(64, return_max_logit=True, scale_block=block, **small, **how)
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, n, 64)).astype(E4M3.numpy) for n in (70, 150, 150))
    shapes = [(1, 2) if block is None else (1, 2, -(-x.shape[2] // block)) for x in (q, k, v)]
    arguments = {n: rng.uniform(-2, 2, s).astype(np.float32) for n, s in zip(SCALES, shapes, strict=True)}
    kernel = flash.AttentionKernel(config)
    _, result = kernel.launch(q, k, v, **arguments, backend="interpreter")
    if block is None:
        wide = scaled((q, k, v), arguments)
    else:
        wide = tuple(
            x.astype(float) * np.repeat(arguments[n], block, axis=2)[:, :, : x.shape[2], None]
            for x, n in zip((q, k, v), NAMES_OF_SCALES, strict=True)
        )
    judge(result, *wide[:2], arithmetic_of_config(config), causal=config.causal, softcap=config.softcap)
    _, on_cpu = kernel.launch(q, k, v, **arguments, backend="cpu")
    judge(on_cpu, *wide[:2], arithmetic_of_config(config), causal=config.causal, softcap=config.softcap)


# ------------------------------------------------------------------------------------------ caches


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("splits", ["auto", 3])
def test_a_step_over_a_cache_begins_anew(backend: Backend, page_size: int | None, splits: Any) -> None:
    cache = flash.KVCache(1, 2, 2, 16, 64, page_size=page_size, backend=backend)
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, heads, 1, 16)).astype(np.float32) for heads in (4, 2, 2))
    step = flash.DecodeStep(q, cache, k, v, layer=0, return_lse=True, return_max_logit=True, splits=splits)
    keys = np.empty((2, 2, 0, 16), np.float32)
    for size in (9.0, 1.0, 0.25):
        q[...] = size * rng.standard_normal(q.shape)
        k[...] = rng.standard_normal(k.shape)
        keys = np.concatenate([keys, k], axis=2)
        out, lse, result = step()
        assert result is step.max_logit
        assert lse is step.lse
        judge(result, q, keys, causal=True)
    same = flash.attention_with_kvcache(q, cache, layer=0, return_max_logit=True, splits=splits)
    assert np.array_equal(same[1], result)
    assert np.array_equal(same[0], out)
    none = flash.attention_with_kvcache(q[:, :, :0], cache, layer=0, return_max_logit=True)[1]
    assert none.shape == (2, 4)
    assert np.isneginf(none).all()


def test_a_decoding_launch_returns_it(backend: Backend) -> None:
    q, k, v = problem(seq=50)
    used, padding = np.array([50, 20], np.int32), np.array([0, 4], np.int32)
    mask = np.random.default_rng(0).random((2, 1, 43, 43)) < 0.5
    kernel = flash.DecodeKernel(flash.AttentionConfig(16, mask=True, return_max_logit=True))
    for splits in (1, 3):
        how: Any = {"seqused_k": used, "leftpad_k": padding, "backend": backend, "splits": splits}
        _, result = kernel.launch(q, k, v, mask=mask, **how)
        for b in range(2):
            keys = slice(padding[b], used[b])
            whole = np.ones((1, 1, 43, used[b] - padding[b]), bool)
            count = min(43, whole.shape[3])
            whole[..., -count:] = mask[b, ..., -count:]
            judge(result[b : b + 1], q[b : b + 1], k[b : b + 1, :, keys], mask=whole)


# ------------------------------------------------------------------------------------------ on a GPU


@pytest.mark.slow
def test_each_launch_on_a_gpu_fills_the_array_before(driver: FakeDriver) -> None:
    config = flash.AttentionConfig(16, mask=True, return_max_logit=True, return_lse=True)
    mask = np.ones((2, 4, 1, 1), bool)
    mask[1, 2] = False  # what no CTA writes to shows what was there
    there = on_device(driver, mask)
    kernel = kernel_on(driver, config)
    q, k, v = problem()
    for scale in (1.0, -3.0, 0.1):
        places = [on_device(driver, x) for x in (np.float32(scale) * q, k, v)]
        _, _, result = kernel.launch(*places, mask=there)
        got = driver.fetch(result.pointer, np.empty((2, 4), np.float32))
        judge(got, np.float32(scale) * q, k, mask=mask)
        _, _, fetched = kernel.launch(np.float32(scale) * q, k, v, mask=mask, backend="cuda")
        assert np.array_equal(fetched, got)
    places = [on_device(driver, x) for x in (q[:, :, :0].copy(), k, v)]
    result = kernel.launch(*places, mask=there)[2]
    assert np.isneginf(driver.fetch(result.pointer, np.empty((2, 4), np.float32))).all()


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "whole"), [(1, 1), (3, 2), (2, 0)])
def test_units_of_a_divided_call_have_their_own(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, batch: int, whole: int
) -> None:
    monkeypatch.setattr(forward, "division_of", lambda *_: Division(whole, 3))
    config = flash.AttentionConfig(16, dtype="f16", target="sm_90", return_max_logit=True)
    q, k, v = problem(batch=batch, dtype=np.float16)
    for _ in range(2):
        result = kernel_on(driver, config).launch(*[on_device(driver, x) for x in (q, k, v)])[1]
        got = driver.fetch(result.pointer, np.empty((batch, 4), np.float32))
        judge(got, q, k, arithmetic_of_config(config))


def test_each_step_over_a_cache_on_a_gpu_fills_the_array_before(driver: FakeDriver) -> None:
    cuda, rng = CudaBackend(driver), np.random.default_rng(2)
    cache = flash.KVCache(1, 2, 2, 16, 64, backend="cuda", cuda=cuda)
    q, k, v = (rng.standard_normal((2, heads, 1, 16)).astype(np.float32) for heads in (4, 2, 2))
    places = [flash.to_device(x, cuda=cuda) for x in (q, k, v)]
    step = flash.DecodeStep(places[0], cache, *places[1:], layer=0, return_max_logit=True)
    keys = np.empty((2, 2, 0, 16), np.float32)
    for size in (9.0, 0.25):
        now = (size * q).astype(np.float32)
        cuda.copy_to_device(places[0].pointer, now.ctypes.data, now.nbytes, ordinal=0)
        keys = np.concatenate([keys, k], axis=2)
        _, result = step()
        judge(result.numpy(), now, keys, causal=True)


@pytest.fixture
def driver() -> FakeDriver:
    return interpreting(FakeDriver(version=1000))


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "call",
    [
        lambda how: flash.attention(*problem(), **how),
        lambda how: flash.AttentionKernel(flash.AttentionConfig(16)).launch(*problem(), **how),
        lambda how: flash.attention_with_kvcache(
            problem()[0], flash.KVCache(1, 2, 2, 16, 64, backend="cpu"), layer=0, **how
        ),
    ],
)
def test_what_is_no_flag_is_refused(call: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(LaunchError, match="return_max_logit must be True or False, got 'yes'"):
        call({"return_max_logit": "yes"})


def test_what_a_config_returns_is_explained() -> None:
    config = flash.AttentionConfig(16, return_lse=True, return_max_logit=True)
    for backend in ("cpu", "interpreter"):
        said = flash.AttentionKernel(config).explain(*problem(), backend=backend)
        assert "\nresults:  out, lse and max_logit\n" in said


def test_the_reference_is_that_of_the_formula() -> None:
    q, k, _ = problem()
    score = np.einsum("bhgid,bhjd->bhgij", q.reshape(2, 2, 2, 33, 16).astype(float), k) / 4
    assert np.allclose(max_logit_reference(q, k), score.max(axis=(3, 4)).reshape(2, 4), rtol=1e-14)
