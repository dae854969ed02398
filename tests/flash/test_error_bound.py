"""What right implementations may err by: they do not err by more, and wrong ones do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from judge import assert_attention_is_accurate, assert_within, rounded_normal

from flash.error_bound import (
    CONFIDENCE,
    Arithmetic,
    TensorCore,
    arithmetic_of,
    arithmetic_of_config,
    attention_bound,
    least_of_pairs,
    merge_bound,
    varlen_bound,
)
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, attention_varlen_reference

pytestmark = pytest.mark.judged

Array = np.ndarray[Any, Any]
F32 = np.float32
SEEN = (2, 2, 9, 70)  # batch, heads, queries and keys
SCALE = 0.25


def inputs(dtype: Any = F32, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    batch, heads, seq_q, seq_k = SEEN
    q = rounded_normal(rng, (batch, heads, seq_q, 16), dtype)
    k, v = (rounded_normal(rng, (batch, heads, seq_k, d), dtype) for d in (16, 8))
    return q, k, v


def in_order(terms: Array) -> Array:
    total = np.zeros(terms.shape[:-1], F32)
    for n in range(terms.shape[-1]):
        total = total + terms[..., n]
    return total


def pairwise(terms: Array) -> Array:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], axis=-1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


ORDERS: dict[str, Callable[[Array], Array]] = {
    "in order": in_order,
    "backwards": lambda terms: in_order(terms[..., ::-1]),
    "pairwise": pairwise,
    "in eight lanes": lambda terms: pairwise(
        np.stack([in_order(terms[..., n::8]) for n in range(8)], axis=-1)
    ),
}


def in_f32(
    q: Array, k: Array, v: Array, add: Callable[[Array], Array], scale: float = SCALE
) -> tuple[Array, Array]:
    """Attention in f32 whose sums are added in an order of its own, without BLAS."""
    q, k, v = (x.astype(F32) for x in (q, k, v))
    scores = add(q[:, :, :, None] * k[:, :, None]) * F32(scale)
    top = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - top)
    total = add(weights)
    out = add(weights[..., None, :] * v.swapaxes(2, 3)[:, :, None]) / total[..., None]
    return out, top[..., 0] + np.log(total)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_order_of_the_sums_does_not_matter(order: str, positive: bool, size: float) -> None:
    q, k, v = (np.abs(x) if positive else x for x in inputs())
    out, lse = in_f32(q * F32(size), k, v, ORDERS[order])
    bound = attention_bound(q * F32(size), k, v, F32, softmax_scale=SCALE)
    assert_within(out, lse, bound)
    assert (np.abs(out - bound.out) / bound.out_error).max() > 0.05  # or nothing would be too large


def wrong_scale(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Its fifth digit."""
    return in_f32(q, k, v, pairwise, SCALE * (1 + 2e-5))


def without_a_key(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """The lightest of one row is left out."""
    out, lse = in_f32(q, k, v, pairwise)
    at = (1, 0, 3)
    scores = np.einsum("d,kd->k", q[at], k[1, 0])
    rest = np.arange(k.shape[2]) != scores.argmin()
    one, one_lse = in_f32(q[1:, :1, 3:4], k[1:, :1, rest], v[1:, :1, rest], pairwise)
    out[at], lse[at] = one[0, 0, 0], one_lse[0, 0, 0]
    return out, lse


def narrow_sum(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Scores that went through 16 bits."""
    k = k.astype(np.float16)
    return in_f32(q, k, v, pairwise)


def narrow_total(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """O is divided by a sum of 22 bits."""
    out, lse = in_f32(q, k, v, pairwise)
    return out * F32(1 + 2.0**-18), lse


@pytest.mark.parametrize("wrong", [wrong_scale, without_a_key, narrow_sum, narrow_total])
def test_what_is_a_little_wrong_is_found(wrong: Callable[..., tuple[Array, Array]]) -> None:
    q, k, v = inputs()
    with pytest.raises(AssertionError, match=r"^out: "):
        assert_attention_is_accurate(*wrong(q, k, v), q, k, v, softmax_scale=SCALE)


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
def test_weights_may_be_as_coarse_as_their_type(dtype: Any) -> None:
    q, k, v = inputs(dtype)
    arithmetic = arithmetic_of("bf16" if dtype == "bf16" else "f16")
    _, lse = attention_reference(q, k, v, softmax_scale=SCALE)
    scores = SCALE * np.einsum("bhqd,bhkd->bhqk", *(x.astype(float) for x in (q, k)))
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))

    def result(rounded: Array) -> Array:
        product = np.einsum("bhqk,bhkd->bhqd", rounded.astype(float), v.astype(float))
        return (product / weights.sum(axis=3, keepdims=True)).astype(q.dtype)

    narrow = weights.astype(q.dtype)
    how: Any = {"softmax_scale": SCALE, "arithmetic": arithmetic}
    assert_attention_is_accurate(result(narrow), lse.astype(F32), q, k, v, **how)
    coarse = weights.astype(ml_dtypes.float8_e5m2 if dtype == "bf16" else ml_dtypes.bfloat16)
    with pytest.raises(AssertionError, match=r"^out: "):
        assert_attention_is_accurate(result(coarse), None, q, k, v, **how)


def test_equal_scores_have_equal_errors() -> None:
    q, k, v = inputs(np.float16)
    q, k[:, :, 1:], v = q[:, :, :1], k[:, :, :1], np.abs(v)  # errors of O add up
    scores = SCALE * np.einsum("bhqd,bhkd->bhqk", *(x.astype(float) for x in (q, k)))
    # Weights that f16 does not have, as far as can be from those that it has.
    sink = scores[:, :, 0, 0] - math.log((1 + 0.99 * 2.0**-11) / 2)
    weights = np.exp(scores - sink[..., None, None])
    total = weights.sum(axis=3, keepdims=True) + 1
    narrow = weights.astype(np.float16).astype(float)
    out = (np.einsum("bhqk,bhkd->bhqd", narrow, v.astype(float)) / total).astype(np.float16)
    how: Any = {"softmax_scale": SCALE, "sink": sink, "arithmetic": arithmetic_of("f16")}
    assert_attention_is_accurate(out, None, q, k, v, **how)


def cut(x: Array, quantum: Array) -> Array:
    """Towards zero, to a multiple of a power of two."""
    return np.trunc(x / quantum) * quantum


def on_tensor_core(terms: Array, core: TensorCore) -> Array:
    """A sum of products [..., n] by the model that `flash/error_bound.py` cites."""
    total = np.zeros(terms.shape[:-1])
    chain = core.chain or terms.shape[-1]
    for begin in range(0, terms.shape[-1], chain):
        part = np.zeros_like(total)
        for first in range(begin, min(begin + chain, terms.shape[-1]), core.products):
            some = terms[..., first : min(first + core.products, begin + chain)]
            some = np.concatenate([some, part[..., None]], axis=-1)
            exponent = np.frexp(some)[1].max(axis=-1) - 1
            exact = cut(some, np.exp2(exponent - core.bits)[..., None]).sum(axis=-1)
            part = cut(exact, np.exp2(np.frexp(exact)[1] - 24.0))
        total = (total + part).astype(F32).astype(float) if core.chain else part
    return total


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("count", [8, 64, 1024])
@pytest.mark.parametrize(
    ("kind", "sm"), [("f16", 80), ("bf16", 90), ("tf32", 80), ("f32_grade", 86), ("f32_grade", 120)]
)
def test_tensor_cores_that_truncate_are_within_their_bound(
    kind: str, sm: int, count: int, positive: bool
) -> None:
    core = arithmetic_of(kind, sm).core
    assert core is not None
    rng = np.random.default_rng(count)
    a, b = (rng.standard_normal((200, count)).astype(np.float16).astype(float) for _ in range(2))
    terms = np.abs(a * b) if positive else a * b
    total, squares = terms.sum(axis=1), (terms**2).sum(axis=1)
    random, mean = core.sum_error(count, total, squares)
    share = np.abs(on_tensor_core(terms, core) - total) / (CONFIDENCE * np.sqrt(random) + abs(mean))
    assert 0.05 < share.max() <= 1


def test_what_pairs_of_f16_may_lose_is_at_most_twice_what_f32_may() -> None:
    q, k, v = (np.abs(x) for x in inputs())
    nearest = attention_bound(q, k, v, F32)
    for sm in (80, 90):
        grade = attention_bound(q, k, v, F32, arithmetic_of("f32_grade", sm))
        assert (grade.out_error > 0.5 * nearest.out_error).all()
        assert (grade.out_error < 2 * nearest.out_error).all()


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, arithmetic_of("f32")),
        ({"precision": "tf32", "target": "sm_80"}, arithmetic_of("tf32", 80)),
        ({"precision": "f32_grade", "target": "sm_90"}, arithmetic_of("f32_grade", 90)),
        ({"dtype": "bf16", "target": "sm_120"}, arithmetic_of("bf16", 120)),
    ],
    ids=["f32", "tf32", "f32_grade", "bf16"],
)
def test_a_configuration_says_the_arithmetic(config: Any, wanted: Arithmetic) -> None:
    assert arithmetic_of_config(AttentionConfig(16, **config)) == wanted
    assert arithmetic_of_config(AttentionConfig(16, **config), 2.0**-24) == replace(wanted, parts=2.0**-24)


def test_tf32_is_judged_on_operands_of_11_bits() -> None:
    q, k, v = inputs()
    rounded = attention_bound(q, k, v, F32, arithmetic_of("tf32"))
    exact = attention_bound(q, k, v, F32)
    assert np.abs(rounded.out - exact.out).max() > 1e-4
    again = attention_bound(
        *(x.astype(np.float16).astype(F32) for x in (q, k, v)), F32, arithmetic_of("tf32")
    )
    halves = attention_reference(*(x.astype(np.float16) for x in (q, k, v)))
    np.testing.assert_array_equal(again.out, halves[0])  # f16 have 11 bits, too


def test_a_row_without_a_key_is_exact_and_one_that_is_not_finite_has_no_bound() -> None:
    q, k, v = inputs()
    v[..., -1, 0] = np.inf
    bound = attention_bound(q, k, v, F32, causal="top_left", mask=np.arange(9)[:, None] > 2)
    assert (bound.out[:, :, :3] == 0).all()
    assert (bound.out_error[:, :, :3] == 0).all()
    assert (bound.lse_error[:, :, :3] == 0).all()
    assert (bound.out_error[:, :, 3:] > 0).all()
    bound = attention_bound(q, k, v, F32)
    assert (bound.out[..., 0] == np.inf).all()
    assert (bound.out_error[..., 0] == 0).all()


@pytest.mark.parametrize("splits", [2, 7])
def test_merged_parts_are_within_the_bound_of_parts(splits: int) -> None:
    q, k, v = inputs()
    k += F32(100) * q.mean()
    result = [in_f32(q, k[:, :, n::splits], v[:, :, n::splits], in_order) for n in range(splits)]
    outs, lses = (np.stack(x, axis=-1 if x[0].ndim == 3 else -2) for x in zip(*result, strict=True))
    weights = np.exp((lses - lses.max(axis=-1, keepdims=True)).astype(F32))
    total = in_order(weights)
    out = in_order((weights[..., None] * outs).swapaxes(-1, -2)) / total[..., None]
    lse = lses.max(axis=-1) + np.log(total)
    assert_within(out, lse, merge_bound(outs, lses, F32))
    arithmetic = Arithmetic(parts=2.0**-24)
    assert_attention_is_accurate(out, lse, q, k, v, softmax_scale=SCALE, arithmetic=arithmetic)


def test_packed_sequences_have_the_bounds_of_each() -> None:
    (q, k, v), cu_q, cu_k = inputs(), np.array([0, 4, 9]), np.array([0, 50, 70])
    q, k, v = (np.moveaxis(x[0], 0, 1) for x in (q, k, v))
    slopes = np.array([[0.1, 0.2], [0.3, 0.4]])
    result = varlen_bound(q, k, v, F32, Arithmetic(), cu_q, cu_k, alibi_slopes=slopes, causal=True)
    wanted, lse = attention_varlen_reference(q, k, v, cu_q, cu_k, alibi_slopes=slopes, causal=True)
    np.testing.assert_array_equal(result.out[0].swapaxes(0, 1), wanted)
    np.testing.assert_array_equal(result.lse[0], lse)
    assert (result.out_error > 0).all()
    assert math.isclose(result.lse_error.min(), result.lse_error.max(), rel_tol=0.9)


@pytest.mark.parametrize("largest", [2.0**-120, 2.0**-9, 2.0**-7, 1.0, 126.0, 128.0, 2.0**100])
def test_a_pair_of_f16_errs_by_its_least_where_that_is_more_than_a_rounding(largest: float) -> None:
    rng = np.random.default_rng(5)
    x = (largest * rng.uniform(-1, 1, (2, 4096)) * 2.0 ** -rng.integers(0, 30, (2, 4096))).astype(F32)
    x[0, 0], x[1] = largest, 0
    power = 8 if 2.0**-7 <= largest < 2.0**7 else min(14 - int(np.log2(largest)), 120)
    scaled = np.ldexp(x.astype(np.float64), power)
    rest = scaled - scaled.astype(np.float16)
    error = np.ldexp(np.abs(rest - rest.astype(np.float16)), -power)
    least = least_of_pairs(x)[:, None]
    assert (error <= np.maximum(2.0**-23 * np.abs(x), least)).all()
    assert (error > np.maximum(2.0**-23 * np.abs(x), least / 2)).any(axis=1).tolist() == [True, False]
