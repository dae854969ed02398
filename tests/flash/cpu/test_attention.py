"""The blocked CPU engine against the float64 reference."""

from __future__ import annotations

import threading
import tracemalloc
from types import ModuleType

import numpy as np
import pytest
from cpu_runs import CAUSAL, DTYPES, assert_same, placed, score_features
from cpu_runs import attended as run
from flash_oracles import torch_attention
from judge import assert_agrees_in_float64, assert_attention_is_accurate, assert_close, rounded_normal

from flash.cpu import attention as cpu
from flash.cpu import job
from flash.cpu.attention import attention_cpu
from flash.cpu.blocks import widen
from flash.cpu.scores import rules_of
from flash.cpu.threads import BlasThreads
from flash.error_bound import F32_ARITHMETIC, attention_bound
from flash.reference import attention_reference
from ptxgen.errors import ConfigError

pytestmark = [pytest.mark.grid, pytest.mark.judged]

PAIRS = [
    *((1, 1), (1, 3), (2, 1), (64, 128), (128, 192), (239, 1), (799, 3), (113, 203), (113, 128)),
    *((128, 217), (108, 256), (256, 512), (384, 256), (640, 128), (1, 239), (3, 799), (127, 512)),
    (512, 127),
]
HEAD_DIMS = [1, 3, 32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 256]


def inputs(seq_q, seq_k, d=16, *, d_v=None, heads=2, kv_heads=1, batch=1, dtype=np.float32):
    rng = np.random.default_rng([seq_q, seq_k, d])
    return (
        rounded_normal(rng, (batch, heads, seq_q, d), dtype),
        rounded_normal(rng, (batch, kv_heads, seq_k, d), dtype),
        rounded_normal(rng, (batch, kv_heads, seq_k, d_v or d), dtype),
    )


def check(q, k, v, **how):
    max_logit = np.full(q.shape[:2], np.nan, np.float32)
    out, lse = run(q, k, v, max_logit=max_logit, **how)
    how |= {"max_logit": max_logit, "arithmetic": F32_ARITHMETIC}
    assert_attention_is_accurate(out, lse, q, k, v, **how)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(("seq_q", "seq_k"), PAIRS)
def test_every_pair_of_lengths(seq_q, seq_k, causal):
    check(*inputs(seq_q, seq_k), causal=causal)


@pytest.mark.parametrize("safe_total", [job.SAFE.total, np.inf], ids=["unshifted", "shifted"])
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 97), (97, 1), (50, 100), (100, 50), (33, 33)])
@pytest.mark.usefixtures("small_blocks")
def test_many_blocks_with_and_without_the_row_maximum(seq_q, seq_k, causal, safe_total, monkeypatch):
    monkeypatch.setattr(cpu, "SAFE", job.SAFE._replace(total=safe_total))
    check(*inputs(seq_q, seq_k, heads=4, kv_heads=2, batch=2), causal=causal)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1023, 1024), (1024, 1023)])
def test_lengths_near_a_thousand(seq_q, seq_k, causal):
    check(*inputs(seq_q, seq_k, heads=1), causal=causal)


@pytest.mark.parametrize("d_v", ["equal", "half", "double"])
@pytest.mark.parametrize("d", HEAD_DIMS)
def test_every_head_dim(d, d_v):
    size = {"equal": d, "half": max(1, d // 2), "double": 2 * d}[d_v]
    check(*inputs(37, 61, d, d_v=size), causal=True)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("seq_q", [1, 3, 20])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (5, 1), (12, 2), (7, 1)])
@pytest.mark.usefixtures("small_blocks")
def test_grouped_heads(heads, kv_heads, seq_q, causal):
    check(*inputs(seq_q, 30, heads=heads, kv_heads=kv_heads, batch=2), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.usefixtures("small_blocks")
def test_every_float_type(dtype, causal):
    check(*inputs(40, 56, 32, dtype=dtype), causal=causal)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.usefixtures("small_blocks")
def test_double_precision_stays_double(causal):
    q, k, v = inputs(40, 56, 32, dtype=np.float64)
    out, lse = run(q, k, v, causal=causal)
    assert lse.dtype == np.float64
    assert_agrees_in_float64(out, q, k, v, causal=causal)
    np.testing.assert_allclose(lse, attention_reference(q, k, v, causal=causal)[1], atol=1e-14)


def test_one_double_among_16_bit_inputs_makes_the_arithmetic_double():
    (q, _, v), k = inputs(40, 56, 32, dtype=np.float16), inputs(40, 56, 32, dtype=np.float64)[1]
    out = np.empty(q.shape, np.float64)
    attention_cpu(q, k, v, out, None, softmax_scale=None, causal=False)
    assert_agrees_in_float64(out, q, k, v)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.7, 1e-6])
def test_any_scale(scale):
    check(*inputs(40, 56), softmax_scale=scale, causal=True)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    q, k, v = inputs(600, 700, heads=3, kv_heads=1)
    expected = run(q, k, v, causal=True, threads=1)
    for threads in (None, 1, 2, 2, 2, 5, 5, 5):
        assert_same(run(q, k, v, causal=True, threads=threads), expected)


def test_threads_share_the_work(monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    attend, meet, seen = cpu._attend, threading.Barrier(2, timeout=30), set()

    def recording(*args, **how):
        seen.add(threading.get_ident())
        meet.wait()
        attend(*args, **how)

    monkeypatch.setattr(cpu, "_attend", recording)
    run(*inputs(512, 8, heads=1), threads=2)
    assert len(seen) == 2


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    meet = threading.Barrier(2, timeout=30)

    def failing(*_, **__):
        meet.wait()
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no more")

    monkeypatch.setattr(cpu, "_attend", failing)
    with pytest.raises(MemoryError, match=r"^no more$"):
        run(*inputs(512, 8, heads=1), threads=2)


# Rows, slots and views that broke others.


@pytest.mark.parametrize(("causal", "seq_q", "seq_k"), [(True, 50, 20), (True, 20, 0), (False, 3, 0)])
@pytest.mark.usefixtures("small_blocks")
def test_a_row_that_sees_no_key_gives_zero_and_minus_infinity(causal, seq_q, seq_k):
    out, lse = run(*inputs(seq_q, seq_k), causal=causal)
    blind = seq_q - seq_k
    assert (out[:, :, :blind] == 0).all()
    assert np.isneginf(lse[:, :, :blind]).all()
    assert np.isfinite(lse[:, :, blind:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_blocks")
def test_keys_that_no_query_sees_cannot_matter(bad, dtype):
    q, k, v = inputs(20, 60, dtype=dtype)
    k[:, :, 20:] = bad
    v[:, :, 20:] = bad
    check(q, k, v, causal="top_left")


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
@pytest.mark.usefixtures("small_blocks")
def test_lse_of_16_bit_types_is_as_exact_as_that_of_f32(dtype):
    q, k, v = inputs(40, 70, 32, dtype=dtype)
    out, lse = run(q, k, v, causal=True)
    wide, wide_lse = run(*(x.astype(np.float32) for x in (q, k, v)), causal=True)
    np.testing.assert_array_equal(lse, wide_lse)
    np.testing.assert_array_equal(out, wide.astype(out.dtype))  # rounded once, at the end


@pytest.mark.parametrize("step", [1, 2])
def test_every_f16_is_widened_as_numpy_does_it(step):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(64, -1)[:, ::step]
    finite = np.where(np.isfinite(every), every, np.float16(0))
    below = np.where(every == np.inf, np.float16(0), every)[np.isfinite(every) | (every < 0)]
    alone = [np.where(np.arange(96) == 5, odd, np.float16(0)) for odd in every[~np.isfinite(every)][::512]]
    small = np.where(np.abs(finite) < 1, finite, np.float16(0))
    for x in (every, finite, below[None], finite[:, :1], finite[:1], small, *alone):
        out = np.empty(x.shape, np.float32)
        widen(x, out)
        np.testing.assert_array_equal(out.view(np.uint32), x.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.usefixtures("small_blocks")
def test_scores_beyond_what_16_bits_hold_are_exact(dtype, sign):
    q, k, v = inputs(20, 50, 8, dtype=dtype)
    q[..., 0], k[..., 0] = 512, sign * 256  # scores near 2^17, beyond f16's 65504
    check(q, k, v, softmax_scale=1.0)


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
def test_sums_beyond_what_16_bits_hold_are_exact(dtype):
    q, k, v = inputs(3, 5000, 8, dtype=dtype)
    q[...] = 0
    v[...] = 60000  # the sum of all is not in f16, and no more than 8 bits of it in bf16
    out, lse = run(q, k, v)
    assert (out == v[0, 0, 0, 0]).all()
    np.testing.assert_allclose(lse, np.log(5000), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, "bf16"])
@pytest.mark.parametrize("causal", ["", "top_left"])
def test_16_bit_types_are_as_near_to_float64_as_pytorchs(torch: ModuleType, dtype, causal):
    q, k, v = inputs(300, 300, 64, heads=3, kv_heads=3, dtype=dtype)
    out, _ = run(q, k, v, causal=causal or False)
    exact = torch_attention(torch, q, k, v, causal=causal)
    tensors = (torch.from_numpy(x.astype(np.float32)) for x in (q, k, v))
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(t.to(kind) for t in tensors), is_causal=bool(causal)
    )
    error = np.abs(out.astype(np.float64) - exact).max()
    # A hundredth for what errs alike and rounds the other way.
    assert error <= 1.01 * np.abs(theirs.double().numpy() - exact).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", [0, 5, 17, 23, 49])
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_key_reaches_only_the_queries_that_see_it(where, key, bad):
    q, k, v = inputs(50, 50, heads=2, kv_heads=1)
    clean, clean_lse = run(q, k, v, causal=True)
    {"k": k, "v": v}[where][:, :, key] = bad
    out, lse = run(q, k, v, causal=True)
    np.testing.assert_allclose(out[:, :, :key], clean[:, :, :key], atol=1e-6)
    np.testing.assert_allclose(lse[:, :, :key], clean_lse[:, :, :key], atol=1e-6)
    if where == "v":
        assert (np.isnan(out) if np.isnan(bad) else out == bad)[:, :, key:].all()
        np.testing.assert_allclose(lse, clean_lse, atol=1e-6)
    else:
        assert np.isnan(out[:, :, key:]).all()
        assert np.isnan(lse[:, :, key:]).all()


def test_broadcast_keys_and_values():
    q, k, v = inputs(40, 1, batch=2, heads=4, kv_heads=2)
    k, v = np.broadcast_to(k, (2, 2, 33, 16)), np.broadcast_to(v, (2, 2, 33, 16))
    assert k.strides[2] == 0
    check(q, k, v, causal=True)
    check(*(np.broadcast_to(x, (3, *x.shape[1:])) for x in inputs(40, 50)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_a_fused_qkv_array(dtype):
    rng = np.random.default_rng(0)
    qkv = rounded_normal(rng, (2, 45, 3, 4, 24), dtype)  # batch, seq, which, head, d
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    check(q, k, v, causal=True)


def test_reversed_spaced_and_misaligned_views():
    q, k, v = inputs(40, 60)
    check(q[:, :, ::-1], k[:, :, ::-3], v[:, :, ::-3])
    loose = np.zeros(k.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(k.shape)
    loose[...] = k
    assert not loose.flags.aligned
    check(q, loose, v)


# One query, one column and one key in the last block make products of a matrix and a vector, which
# BLAS may add up in an order that goes by addresses and strides.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("seq_q", "d", "d_v"),
    [(1, 7, 1), (1, 64, 3), (1, 4, 8), (1, 16, 17), (1, 128, 64), (2, 64, 9), (3, 1, 1), (5, 8, 4)],
)
@pytest.mark.parametrize("odd", [False, True])
def test_where_arrays_lie_with_what_strides_changes_no_bit(seq_q, d, d_v, dtype, odd):
    for seq_k in (33, 513):
        q, k, v = inputs(seq_q, seq_k, d, d_v=d_v, heads=1, dtype=dtype)
        v[..., seq_k - 3, :] = np.inf if odd else 0  # left out of some products
        mask = np.arange(seq_k) != seq_k - 3
        wanted = run(q, k, v, mask=mask)
        for offset, gap in ((0, 0), (1, 0), (2, 0), (5, 0), (0, 1), (1, 3), (0, 16)):
            assert_same(run(*(placed(x, offset, gap) for x in (q, k, v)), mask=mask), wanted)


def test_output_goes_into_the_strides_it_is_given():
    q, k, v = inputs(30, 40, heads=4, kv_heads=2, batch=2)
    room, lse_room = np.full((2, 30, 4, 20), 7, np.float32), np.full((2, 30, 4, 2), 7, np.float32)
    out, lse = room[..., :16].transpose(0, 2, 1, 3), lse_room[..., 0].transpose(0, 2, 1)
    attention_cpu(q, k, v, out, lse, softmax_scale=None, causal=True)
    assert_attention_is_accurate(out, lse, q, k, v, causal=True, arithmetic=F32_ARITHMETIC)
    assert (room[..., 16:] == 7).all()
    assert (lse_room[..., 1] == 7).all()


def test_lse_may_be_left_out():
    q, k, v = inputs(30, 40)
    out = np.empty_like(q)
    attention_cpu(q, k, v, out, None, softmax_scale=None, causal=False)
    assert_attention_is_accurate(out, None, q, k, v, arithmetic=F32_ARITHMETIC)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(
    ("batch", "heads", "seq_q", "seq_k"), [(0, 2, 3, 4), (2, 2, 0, 4), (0, 2, 0, 0), (1, 0, 2, 2)]
)
def test_nothing_to_compute(batch, heads, seq_q, seq_k, causal):
    shape = (batch, heads, seq_q, 8)
    k = np.ones((batch, heads, seq_k, 8), np.float32)
    out, lse = run(np.ones(shape, np.float32), k, k, causal=causal)
    assert (out.shape, lse.shape) == (shape, shape[:3])


# Scores for which exp without the row maximum is not safe.


@pytest.mark.parametrize("factor", [5, 30, 300, 1e4])
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.usefixtures("small_blocks")
def test_huge_scores(factor, causal):
    q, k, v = inputs(50, 70)
    q *= np.float32(factor)
    out, lse = run(q, k, v, causal=causal)
    exact, exact_lse = attention_reference(q, k, v, causal=causal)
    # Near ties make single errors a matter of luck: allow for what a score's rounding can do.
    size = (np.abs(q) @ np.abs(k).swapaxes(2, 3)).max() / np.sqrt(q.shape[3])
    slip = 4 * float(np.finfo(np.float32).eps) * float(size)
    np.testing.assert_allclose(out, exact, rtol=0, atol=np.abs(v).max() * np.expm1(2 * slip))
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-6, atol=slip)


@pytest.mark.parametrize("score", [-1e4, -110.0, -95.0, -80.0, -13.0, 13.0, 80.0, 88.0, 100.0, 1e4])
@pytest.mark.usefixtures("small_blocks")
def test_all_scores_near_one_number(score):
    q, k, v = inputs(20, 50, 8)
    q[..., 0], k[..., 0] = 1, score
    k[..., 1:] /= 100
    check(q, k, v, softmax_scale=1.0)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.usefixtures("small_blocks")
def test_scores_that_rise_or_fall_from_block_to_block(direction):
    q, k, v = inputs(20, 200, 8)
    q[..., 0], k[..., 0] = 1, np.linspace(-300, 300, 200)[::direction]
    check(q, k, v, softmax_scale=1.0)


@pytest.mark.parametrize("size", [1e37, 1e30, 1e-30, 1e-36])
@pytest.mark.parametrize("lift", [-12.0, 0.0, 12.0, 60.0])
@pytest.mark.usefixtures("small_blocks")
def test_values_near_the_ends_of_the_range(size, lift):
    q, k, v = inputs(20, 50, 8)
    q[..., 0], k[..., 0] = 1, lift
    v *= np.float32(size)
    out, _ = run(q, k, v, softmax_scale=1.0)
    assert_attention_is_accurate(out, None, q, k, v, softmax_scale=1.0, arithmetic=F32_ARITHMETIC)


def test_a_sum_that_overflows_shows_even_if_all_values_are_zero():
    q, k, v = inputs(20, 50, 8)
    q[..., 0], k[..., 0] = 1, 87.0
    k[..., 1:] = 0
    v[...] = 0
    out, lse = run(q, k, v, softmax_scale=1.0)
    assert (out == 0).all()
    np.testing.assert_allclose(lse, 87 + np.log(50), rtol=1e-6)


def test_a_row_whose_scores_are_all_minus_infinity_is_like_one_without_keys():
    q, k, v = inputs(3, 4, 8)
    q, k = np.abs(q), np.full_like(k, -np.inf)
    out, lse = run(q, k, v)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_valid_scores_below_any_finite_sentinel_survive():
    q = np.full((1, 1, 4, 1), -1e18, np.float32)
    k = np.full((1, 1, 4, 1), 1e18, np.float32)
    v = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    out, lse = run(q, k, v, softmax_scale=1.0, causal=True)
    np.testing.assert_allclose(out.ravel(), [0, 0.5, 1, 1.5], rtol=1e-6)
    np.testing.assert_allclose(lse, -1e36, rtol=1e-6)


def test_lse_is_natural_and_right_near_zero():
    q = np.zeros((1, 1, 1, 4), np.float32)
    k = np.zeros((1, 1, 8, 4), np.float32)
    assert run(q, k, k)[1].item() == pytest.approx(np.log(8), rel=1e-6)
    assert run(q, k[:, :, :1], k[:, :, :1])[1].item() == 0


@pytest.mark.parametrize("causal", ["", "top_left"])
def test_agrees_with_pytorch(torch: ModuleType, causal):
    q, k, v = inputs(300, 300, 64, heads=3, kv_heads=3)
    out, _ = run(q, k, v, causal=causal or False)
    allowed = 2 * attention_bound(q, k, v, out.dtype, causal=causal or False).out_error
    assert_close("out", out, torch_attention(torch, q, k, v, causal=causal), allowed)


def test_an_unknown_causal_word_is_refused_before_anything_is_written():
    q, k, v = inputs(3, 3)
    out = np.full_like(q, 7)
    with pytest.raises(ConfigError) as error:
        attention_cpu(q, k, v, out, None, softmax_scale=None, causal="right")
    assert str(error.value) == (
        "attention: causal must be False, True, 'bottom_right' or 'top_left', got 'right'"
    )
    assert (out == 7).all()


# Memory and BLAS.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq_q", "seq_k"),
    [(1, 1, 2048, 4096), (8, 8, 1024, 1024), (8, 8, 1, 9000), (32, 4, 2, 3000)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_memory_stays_within_the_documented_bound(heads, kv_heads, seq_q, seq_k, causal, dtype):
    d, d_v = 32, 48
    q, k, v = inputs(seq_q, seq_k, d, d_v=d_v, heads=heads, kv_heads=kv_heads, dtype=dtype)
    out = np.empty((1, heads, seq_q, d_v), q.dtype)
    rows, keys = job.BLOCK_Q, job.BLOCK_K
    elements = 2 * rows * (2 * keys + d + 2 * d_v + 8) + 2 * max(job.KEY_ELEMENTS, keys * max(d, d_v))
    tracemalloc.start()
    try:
        attention_cpu(q, k, v, out, None, softmax_scale=None, causal=causal, threads=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 4 * elements + 8 * rows * keys + 64 * 1024  # and Python's own objects


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.usefixtures("small_blocks")
def test_two_blocks_at_once_of_one_head_or_of_two(heads, kv_heads, causal, monkeypatch):
    monkeypatch.setattr(job, "BLOCKS_TO_JOIN", 1)
    check(*inputs(50, 70, heads=heads, kv_heads=kv_heads, batch=2), causal=causal)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_value_of_one_head_reaches_no_other(bad, monkeypatch):
    monkeypatch.setattr(job, "BLOCKS_TO_JOIN", 1)
    q, k, v = inputs(40, 40, heads=4, kv_heads=4)
    clean, _ = run(q, k, v, causal=True)
    v[:, 2, 30] = bad
    out, _ = run(q, k, v, causal=True)
    touched = np.zeros((4, 40), bool)
    touched[2, 30:] = True
    np.testing.assert_allclose(out[0][~touched], clean[0][~touched], atol=1e-6)
    assert not np.isfinite(out[0][touched]).any()


def test_blas_gets_its_threads_back_when_the_last_overlapping_call_ends():
    blas = BlasThreads()
    first, second = blas.one_each(), blas.one_each()
    with BlasThreads().one_each() as usual:
        pass
    assert first.__enter__() == usual
    assert second.__enter__() == usual
    first.__exit__(None, None, None)
    libraries = blas._libraries.lib_controllers
    assert {library.num_threads for library in libraries} <= {1}
    second.__exit__(None, None, None)
    assert max((library.num_threads for library in libraries), default=usual) == usual


# ------------------------------------------------------------------------------------------
# window, softcap, ALiBi, bias, mask, sink


NUMBERS = {
    "left": {"window": (20, None)},
    "right": {"window": (None, 4)},
    "both_sides": {"window": (30, 9)},
    "own_position": {"window": (0, 0)},
    "softcap": {"softcap": 1.5},
}
PLANES = ["alibi_slopes", "bias", "mask", "sink"]


def features_for(name, shape):
    """The feature of this name, or all, for scores of a shape."""
    return NUMBERS.get(name) or score_features(name, shape)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*NUMBERS, *PLANES, "all"])
def test_every_feature_is_as_accurate_as_numpy(name, dtype, causal):
    for seq_q, seq_k in ((40, 71), (71, 40), (48, 48), (5, 0)):
        q, k, v = inputs(seq_q, seq_k, heads=4, kv_heads=2, batch=2, dtype=dtype)
        features = features_for(name, (2, 4, seq_q, seq_k))
        check(q, k, v, causal=causal, **features)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_bad_key_that_a_plane_hides_cannot_matter(name, bad):
    q, k, v = inputs(40, 71)
    features = features_for(name, (1, 2, 40, 71))
    features[name][..., [3, 50]] = False if name == "mask" else -np.inf
    clean = run(q, k, v, **features)
    k[:, :, [3, 50]] = v[:, :, [3, 50]] = bad
    assert_same(run(q, k, v, **features), clean)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("logit", [-np.inf, -1e30, -200.0, 0.0, 200.0, 1e4])
@pytest.mark.parametrize("causal", CAUSAL)
def test_a_sink_of_any_size_is_right(logit, causal):
    check(*inputs(60, 40), causal=causal, sink=np.array([logit, 1.0], np.float32))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("cap", [1e-6, 0.5, 1e6])
@pytest.mark.parametrize("scale", [0.25, -3.0, 100.0])
def test_any_softcap_is_right_with_any_scale(cap, scale):
    check(*inputs(40, 71), softcap=cap, softmax_scale=scale)


def test_rules_of_equal_numbers_of_other_types_are_not_shared():
    location = (1, 2, 3, 4), False, np.dtype(np.float32), 0, 0
    windows = [(1, 0), (True, False), (1, 0)]
    result = [rules_of(*location, {"window": window}).of.arguments["window"] for window in windows]
    assert [[type(side) for side in window] for window in result] == [[int, int], [bool, bool], [int, int]]
    assert rules_of(*location, {"window": (1, 0)}) is rules_of(*location, {"window": (1, 0)})
