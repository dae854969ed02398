"""The backend "compiled" against float64, and in the bits that it promises."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cpu_runs import DTYPES, assert_same, attended, score_features
from judge import assert_attention_is_accurate, rounded_normal

import flash
from flash.cpu import attention as cpu
from flash.cpu import few_queries, job
from flash.cpu.engine_choice import engine_of
from flash.cpu.paged_rows import PagedRows
from flash.error_bound import F32_ARITHMETIC
from ptxgen.runtime.settings import COMPILED

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("compiled")]

FEATURES = ["none", "window", "softcap", "alibi_slopes", "bias", "mask", "sink", "all"]


def inputs(shape: tuple[int, ...], keys: int, d: int, d_v: int, kv_heads: int, dtype: Any) -> Any:
    """q of a shape [batch, heads, seq_q], with k and v."""
    rng = np.random.default_rng([*shape, keys, d])
    return (
        rounded_normal(rng, (*shape, d), dtype),
        *(rounded_normal(rng, (shape[0], kv_heads, keys, dim), dtype) for dim in (d, d_v)),
    )


def run(q: Any, k: Any, v: Any, **how: Any) -> Any:
    """Output and LSE of the engine "compiled"."""
    return attended(q, k, v, engine=engine_of(COMPILED), **how)


def check(q: Any, k: Any, v: Any, **how: Any) -> None:
    out, lse = run(q, k, v, **how)
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=F32_ARITHMETIC, **how)


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 4, 40])
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (9, 2), "softcap": 2.0}], ids=str)
def test_the_largest_scores_of_heads_are_right(queries: int, how: Any) -> None:
    q, k, v = inputs((2, 4, queries), 70, 16, 8, 2, np.float32)
    max_logit = np.full((2, 4), np.nan, np.float32)
    out, lse = run(q, k, v, max_logit=max_logit, **how)
    judged = {"arithmetic": F32_ARITHMETIC, "max_logit": max_logit, **how}
    assert_attention_is_accurate(out, lse, q, k, v, **judged)


# Rows of each head of K: 1, 3 and 4 and more at once for the loops, and as many as BLAS gets.
@pytest.mark.sample(40, gate=40)
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "d_v"), [(1, 3), (40, 24), (64, 64), (111, 128)])
@pytest.mark.parametrize(("heads", "seq_q"), [(2, 1), (6, 1), (8, 1), (14, 1), (4, 3), (4, 40)])
@pytest.mark.usefixtures("small_blocks")
def test_every_number_of_rows_and_columns(
    heads: int, seq_q: int, d: int, d_v: int, dtype: Any, causal: Any
) -> None:
    check(*inputs((2, heads, seq_q), 61, d, d_v, 2, dtype), causal=causal)


@pytest.mark.sample(24, gate=24)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(2, 71), (40, 71), (71, 40), (5, 0)])
@pytest.mark.usefixtures("small_blocks")
def test_every_feature(name: str, dtype: Any, causal: Any, seq_q: int, seq_k: int) -> None:
    how = score_features(name, (2, 4, seq_q, seq_k))
    check(*inputs((2, 4, seq_q), seq_k, 16, 16, 2, dtype), causal=causal, **how)


@pytest.mark.parametrize("safe_total", [job.SAFE.total, np.inf], ids=["unshifted", "shifted"])
@pytest.mark.parametrize("score", [-1e4, -95.0, -13.0, 60.0, 70.0, 100.0])
@pytest.mark.parametrize("seq_q", [1, 4])
@pytest.mark.usefixtures("small_blocks")
def test_all_scores_near_one_number(seq_q: int, score: float, safe_total: float, monkeypatch: Any) -> None:
    for module in (cpu, few_queries):
        monkeypatch.setattr(module, "SAFE", job.SAFE._replace(total=safe_total))
    q, k, v = inputs((1, 2, seq_q), 50, 8, 8, 1, np.float32)
    q[..., 0], k[..., 0] = 1, score
    k[..., 1:] /= 100
    check(q, k, v, softmax_scale=1.0, causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_over_more_keys_than_scores_are_kept(dtype: Any, compiled: ModuleType) -> None:
    check(*inputs((1, 4, 1), 2 * compiled._KEYS_AT_ONCE + 7, 40, 20, 2, dtype))


@pytest.mark.parametrize(
    ("seq_q", "how", "at_once"),
    [
        (1, {"causal": True}, True),
        (1, {"causal": True, "window": (20, None), "sink": np.full((1, 2), 3, np.float32)}, True),
        (3, {}, True),
        (3, {"causal": True}, False),
        (3, {"window": (20, 20)}, False),
        (9, {}, False),
        (1, {"softcap": 2.0}, False),
        (1, {"mask": np.arange(50).reshape(1, 1, 1, 50) % 3 > 0}, False),
        (1, {"dropout": 0.5}, False),
    ],
)
def test_few_rows_are_computed_at_once_where_nothing_changes_their_scores(
    seq_q: int, how: dict[str, Any], at_once: bool, compiled: ModuleType, monkeypatch: Any
) -> None:
    attend, calls = compiled.attend, []
    monkeypatch.setattr(compiled, "attend", lambda *given: calls.append(given) or attend(*given))
    q, k, v = inputs((1, 2, seq_q), 50, 24, 8, 2, np.float32)
    check(q, k, v, **how)
    assert len(calls) == at_once


@pytest.mark.parametrize(("score", "size"), [(1e3, 1.0), (-1e3, 1.0), (-11.0, 1e-29), (50.0, 1e20)])
@pytest.mark.parametrize("unsafe", [[(0, 1)], [(0, 2), (1, 0)], [*itertools.product(range(2), range(3))]])
def test_heads_of_a_token_whose_sums_are_not_safe_are_computed_once_more(
    unsafe: list[tuple[int, int]], score: float, size: float, monkeypatch: Any
) -> None:
    attend, again = cpu._attend, []

    def recorded(*given: Any, shifted: bool) -> None:
        _, _, *task = given
        again.append((*task, shifted))
        attend(*given, shifted=shifted)

    monkeypatch.setattr(cpu, "_attend", recorded)
    q, k, v = inputs((2, 6, 1), 50, 8, 8, 3, np.float32)
    q[..., 0], k[..., 0] = 1, 0
    for at in unsafe:
        k[(*at, slice(None), 0)] = score
        v[at] *= np.float32(size)
    check(q, k, v, softmax_scale=1.0)
    assert sorted(again, key=str) == [(b, slice(2 * kv, 2 * kv + 2), slice(0, 1), True) for b, kv in unsafe]


@pytest.mark.parametrize("sink", [None, 0.0])
def test_a_query_that_its_scale_makes_infinite_is_left_to_the_steps(sink: float | None) -> None:
    q, k, v = inputs((1, 2, 1), 50, 8, 8, 2, np.float32)
    q[...], k[...] = 3e38, -1e-39  # times the scale, an infinite sum of products of a finite one
    how = {} if sink is None else {"sink": np.full((1, 2), sink, np.float32)}
    check(q, k, v, softmax_scale=2.0, **how)


def test_weights_are_exponentials_of_scores(compiled: ModuleType) -> None:
    scores = np.concatenate([np.linspace(-110, 66, 100_001), [np.nan, np.inf, -np.inf, -1e9, -1e38, 1e38]])
    scores = scores.astype(np.float32)[None]
    exact = np.exp(np.minimum(scores, 70).astype(np.float64))
    hidden = np.arange(scores.size)[None] % 3 == 0
    for seen in (None, ~hidden):
        weights, total = scores.copy(), np.ones(1, np.float32)
        if seen is None:
            compiled.weights(weights, total)
        else:
            compiled.weights_of_seen(weights, ~seen, total)
        assert np.isnan(total).all()
        wanted = np.where(scores > 65, np.inf, exact)  # the limit that the loops document
        wanted = wanted if seen is None else np.where(seen, wanted, 0)
        known = np.isfinite(wanted)
        np.testing.assert_array_equal(weights[~known], wanted[~known])
        # 1.4 units in the last place; half a unit of subnormal numbers, beyond these
        np.testing.assert_allclose(weights[known], wanted[known], rtol=1.4 * 2.0**-24, atol=0.75 * 2.0**-149)
    few, total = np.log(np.arange(1, 38, dtype=np.float32))[None], np.full(1, 5, np.float32)
    compiled.weights(few, total)
    np.testing.assert_allclose(total, 5 + 37 * 38 / 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_every_number_of_16_bits_is_read_as_it_is(dtype: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)[None, None, :, None]
    engine, space = engine_of(COMPILED), cpu.Workspace(np.dtype(np.float32))
    out = np.empty((1, 1, 1 << 16), np.float32)
    location = cpu.KeyIndex(0, slice(0, 1), slice(0, 1 << 16))
    engine.scores_of_keys(space, every, location, np.ones((1, 1, 1), np.float32), out)
    np.testing.assert_array_equal(out.ravel(), every.astype(np.float32).ravel())


# ------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seq_q", [1, 300])
def test_the_number_of_threads_changes_no_bit(seq_q: int, dtype: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    monkeypatch.setattr(job, "KEY_ELEMENTS", 2**14)  # tasks of a head of K each
    arrays = inputs((2, 6, seq_q), 700, 32, 16, 3, dtype)
    expected = run(*arrays, causal=True, threads=1)
    for threads in (2, 5):
        assert_same(run(*arrays, causal=True, threads=threads), expected)


@pytest.mark.parametrize("looks", [0, 2**12, 2**22], ids=["nobody waits", "some wait", "all wait"])
def test_calls_at_once_change_no_bit(looks: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    monkeypatch.setattr("flash.cpu.compiled._LOOKS", looks)
    of_each = [inputs((2, 6, 1), 300 + n, 32, 16, 3, np.float32) for n in range(6)]
    expected = [run(*arrays, threads=1) for arrays in of_each]
    with ThreadPoolExecutor(6) as callers:
        for _ in range(10):
            result = callers.map(lambda arrays: run(*arrays, threads=3), of_each)
            for one, other in zip(result, expected, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("layout", ["heads first", "rows first", "every other column"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "first"), [(3, 7), (16, 0)])
@pytest.mark.parametrize("seq_q", [1, 5])
def test_pages_give_the_bits_of_contiguous_keys(
    seq_q: int, page_size: int, first: int, dtype: Any, layout: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(job, "KEY_ELEMENTS", 2**8)  # tasks of a head of K each
    keys, kv_heads = 90, 3
    q, *of_keys = inputs((1, kv_heads, seq_q), keys, 20, 12, kv_heads, dtype)
    count = -(-(first + keys) // page_size)
    table = np.random.default_rng(0).permutation(count + 2).astype(np.int32)
    paged = []
    for x in of_keys:
        columns = x.shape[3]
        memory = np.full((count + 2, kv_heads, page_size, 2 * columns), np.nan, x.dtype)
        if layout == "rows first":
            memory = memory.reshape(count + 2, page_size, kv_heads, 2 * columns).swapaxes(1, 2)
        pages = memory[..., ::2] if layout == "every other column" else memory[..., :columns]
        for row in range(keys):
            page, inside = divmod(first + row, page_size)
            pages[table[page], :, inside] = x[0, :, row]
        paged.append(PagedRows(pages if columns < 20 else pages.copy(), table, keys, first))
    results = [run(q, *some, causal=True) for some in (of_keys, paged)]
    assert np.isfinite(results[0][0].astype(np.float32)).all()
    assert_same(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [61, 700, 2100])
@pytest.mark.parametrize("is_safe", [True, False], ids=["safe", "a head is not safe"])
def test_where_keys_lie_with_what_strides_changes_no_bit(keys: int, dtype: Any, is_safe: bool) -> None:
    q, k, v = inputs((1, 6, 1), keys, 24, 24, 2, dtype)
    if not is_safe:
        v[0, 1, 5, 3] = np.nan
    wanted = run(q, k, v)
    fused = np.stack([k, v], axis=3)  # [batch, kv_heads, seq, which, dim]
    loose = np.zeros(k.nbytes + 1, np.uint8)[1:].view(k.dtype).reshape(k.shape)
    loose[...] = k
    assert not loose.flags.aligned
    for one, other in (
        (fused[..., 0, :], fused[..., 1, :]),
        (loose, v),
        (np.asfortranarray(k), v[:, :, ::-1].copy()[:, :, ::-1]),
        (k, np.ascontiguousarray(v.swapaxes(1, 2)).swapaxes(1, 2)),
    ):
        assert_same(run(q, one, other), wanted)


# ------------------------------------------------------------------------------- odd numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mask", "bias", "top_left"])
@pytest.mark.usefixtures("small_blocks")
def test_keys_that_no_query_sees_cannot_matter(name: str, dtype: Any, bad: float) -> None:
    q, k, v = inputs((1, 2, 4), 71, 16, 16, 1, dtype)
    how: dict[str, Any] = {"causal": "top_left"}
    unseen: Any = slice(4, None)
    if name != "top_left":
        how, unseen = score_features(name, (1, 2, 4, 71)), [3, 50]
        how[name][..., unseen] = False if name == "mask" else -np.inf
    clean = run(q, k, v, **how)
    k[:, :, unseen] = v[:, :, unseen] = bad
    assert_same(run(q, k, v, **how), clean)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_key_reaches_the_queries_that_see_it_and_no_other(where: str, dtype: Any, bad: float) -> None:
    q, k, v = inputs((1, 2, 4), 50, 16, 16, 1, dtype)
    clean, clean_lse = run(q, k, v, causal=True)
    (k if where == "k" else v)[:, :, 48] = bad  # the last two queries see it
    out, lse = run(q, k, v, causal=True)
    # The block is computed again with the maximum of each row, with other roundings.
    alike = {"rtol": 0 if dtype == np.float32 else 2**-7, "atol": 1e-6}
    np.testing.assert_allclose(*(x[:, :, :2].astype(np.float32) for x in (out, clean)), **alike)
    np.testing.assert_allclose(lse[:, :, :2], clean_lse[:, :, :2], atol=1e-6)
    rest = out[:, :, 2:].astype(np.float32)
    if where == "k":
        assert np.isnan(rest).all()
        assert np.isnan(lse[:, :, 2:]).all()
    else:
        assert (np.isnan(rest) if np.isnan(bad) else rest == bad).all()
        np.testing.assert_allclose(lse, clean_lse, atol=1e-6)


def test_a_weight_that_is_zero_as_f32_still_meets_its_value() -> None:
    q, k, v = (np.ones((1, 1, n, 1), np.float16) for n in (1, 40, 40))
    k[0, 0, 7], v[0, 0, 7] = -300, np.inf
    for backend in ("cpu", "compiled"):
        assert np.isnan(flash.attention(q, k, v, softmax_scale=1.0, backend=backend)).all()


def test_a_row_that_sees_no_key_gives_zero_and_minus_infinity() -> None:
    for dtype in DTYPES:
        out, lse = run(*inputs((1, 2, 5), 2, 8, 8, 1, dtype), causal=True)
        assert (out[:, :, :3] == 0).all()
        assert np.isneginf(lse[:, :, :3]).all()
        assert np.isfinite(lse[:, :, 3:]).all()


def test_double_precision_is_that_of_numpy() -> None:
    arrays = [x.astype(np.float64) for x in inputs((1, 2, 3), 50, 8, 8, 1, np.float32)]
    assert_same(*(attended(*arrays, causal=True, engine=engine_of(name)) for name in ("cpu", COMPILED)))
