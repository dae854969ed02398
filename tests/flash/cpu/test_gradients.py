"""The blocked CPU gradients against those of the float64 reference."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from cpu_gradient_runs import NUMBERS, check, features_for, problem, run
from cpu_runs import CAUSAL, DTYPES, assert_same, placed
from gradient_judge import by_name
from gradient_oracles import broadcasts
from judge import rounded_normal

from flash.cpu import gradients as cpu
from flash.cpu.attention import attention_cpu
from flash.cpu.gradients import attention_gradients_cpu
from flash.reference import attention_reference_gradients, attention_varlen_reference_gradients
from ptxgen.errors import ConfigError

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]

PAIRS = [(1, 1), (1, 70), (70, 1), (33, 33), (40, 71), (71, 40), (100, 100), (5, 0), (0, 5)]
ARRAYS = ["alibi_slopes", "bias", "key_bias", "sink"]
FEATURES = [*NUMBERS, *ARRAYS, "mask", "all"]


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 300), (300, 1), (256, 256), (257, 512), (513, 257)])
def test_lengths_about_those_of_whole_blocks(seq_q, seq_k, causal):
    check(*problem(seq_q, seq_k, heads=1), causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(("seq_q", "seq_k"), PAIRS)
@pytest.mark.usefixtures("small_blocks")
def test_every_feature_is_as_accurate_as_dense_arithmetic(seq_q, seq_k, name, causal, dtype):
    arguments = problem(seq_q, seq_k, d_v=8, heads=4, kv_heads=2, batch=2, dtype=dtype)
    arrays, how = features_for(name, (2, 4, seq_q, seq_k))
    check(*arguments, arrays, causal=causal, **how)


@pytest.mark.parametrize("d", [1, 3, 40, 64, 96])
@pytest.mark.parametrize("d_v", ["equal", "half", "double"])
def test_every_head_dim(d, d_v):
    check(*problem(37, 61, d, d_v={"equal": d, "half": max(1, d // 2), "double": 2 * d}[d_v]), causal=True)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("seq_q", [1, 3, 20])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (5, 1), (12, 2), (7, 1)])
@pytest.mark.usefixtures("small_blocks")
def test_grouped_heads(heads, kv_heads, seq_q, causal):
    check(*problem(seq_q, 30, heads=heads, kv_heads=kv_heads, batch=2), causal=causal)


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.usefixtures("small_blocks")
def test_double_precision_stays_double(causal):
    dout, dlse, q, k, v = problem(40, 56, heads=4, kv_heads=2, dtype=np.float64)
    arrays, how = features_for("all", (1, 4, 40, 56))
    result, _, _ = run(dout, dlse, q, k, v, arrays, causal=causal, **how)
    wanted = attention_reference_gradients(dout, q, k, v, dlse=dlse, causal=causal, **arrays, **how)
    for name, exact in by_name(wanted).items():
        relative = 1e-12 if name in "qkv" else 1e-5  # of arrays in f32
        np.testing.assert_allclose(result[name], exact, rtol=0, atol=relative * np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing", "all"])
def test_gradcheck_in_double_precision(name, torch, monkeypatch):
    """PyTorch's check of each element against finite differences, with its own tolerances."""
    monkeypatch.setattr(cpu, "BLOCK_Q", 2)
    monkeypatch.setattr(cpu, "BLOCK_K", 3)
    _, _, *qkv = problem(5, 7, d=3, d_v=2, heads=2, dtype=np.float64)
    arrays, how = features_for(name, (1, 2, 5, 7))
    arrays = {name: np.nan_to_num(x.astype(np.float64), neginf=-1) for name, x in arrays.items()}
    how = {"softmax_scale": None, "causal": True, **how}

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            q, k, v, *more = (x.detach().numpy() for x in tensors)
            out, lse = np.empty((*q.shape[:3], v.shape[3])), np.empty(q.shape[:3])
            ctx.given = q, k, v, out, lse, dict(zip(arrays, more, strict=True))
            attention_cpu(*ctx.given[:5], **ctx.given[5], **how)
            return torch.from_numpy(out), torch.from_numpy(lse)

        @staticmethod
        def backward(ctx, dout, dlse):
            *five, more = ctx.given
            result = [np.full_like(x, np.nan) for x in (*five[:3], *more.values())]
            into = dict(zip(more, result[3:], strict=True))
            attention_gradients_cpu(
                dout.contiguous().numpy(), *five, *result[:3], into, dlse=dlse.numpy(), **more, **how
            )
            return tuple(map(torch.from_numpy, result))

    leaves = [torch.from_numpy(x).requires_grad_() for x in (*qkv, *arrays.values())]
    assert torch.autograd.gradcheck(Attention.apply, leaves)


def test_without_a_gradient_of_lse_it_is_zero():
    dout, dlse, *qkv = problem(40, 56)
    assert_same(run(dout, None, *qkv)[0], run(dout, np.zeros_like(dlse), *qkv)[0])


SHARED = (2, 4, 20, 30)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("bias", shape) for shape in broadcasts(*SHARED)),
        *(("key_bias", shape) for shape in broadcasts(2, 4, 30)),
        *(("alibi_slopes", shape) for shape in broadcasts(2, 4)),
        *(("sink", shape) for shape in broadcasts(2, 4)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("small_blocks")
def test_an_array_of_any_shape_that_broadcasts_has_a_gradient_of_that_shape(name, shape, monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    array = {name: np.random.default_rng(len(shape)).standard_normal(shape, np.float32)}
    arguments = problem(20, 30, d_v=8, heads=4, kv_heads=2, batch=2)
    check(*arguments, array, causal=True, softcap=3.0, threads=4)


def test_gradients_of_arrays_that_are_not_wanted_are_not_computed():
    dout, dlse, q, k, v = problem(40, 56)
    arrays, how = features_for("all", (1, 2, 40, 56))
    (wanted, out, lse), dq = run(dout, dlse, q, k, v, arrays, **how), np.empty_like(q)
    one = {"sink": np.empty_like(arrays["sink"])}
    result = {"q": dq, "k": np.empty_like(k), "v": np.empty_like(v)}
    attention_gradients_cpu(
        dout,
        q,
        k,
        v,
        out,
        lse,
        *result.values(),
        one,
        dlse=dlse,
        softmax_scale=None,
        causal=False,
        **arrays,
        **how,
    )
    assert_same({**result, **one}, {name: wanted[name] for name in (*result, *one)})


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("causal", CAUSAL)
def test_packed_sequences_one_after_another(causal, used):
    cu_q, cu_k = np.array([0, 0, 30, 77]), np.array([0, 9, 59, 99])
    seqused = np.array([9, 31, 40]) if used else np.diff(cu_k)
    dout, dlse, q, k, v = (x[0] for x in problem(77, 99, heads=4, kv_heads=2))
    slopes = np.float32([0.1, 0.2, 0.3, 0.4])
    how = {"causal": causal, "window": (20, 7), "dropout": 0.2, "dropout_seed": 3}
    dq, dk, dv, total = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros(4)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b] + seqused[b])
        own = (x[None] for x in (dout[:, rows], dlse[:, rows], q[:, rows], k[:, keys], v[:, keys]))
        result, _, _ = run(*own, {"alibi_slopes": slopes}, first_batch=b, **how)
        dq[:, rows], dk[:, keys], dv[:, keys] = (result[name][0] for name in "qkv")
        total += result["alibi_slopes"]
    wanted = attention_varlen_reference_gradients(
        *(x.swapaxes(0, 1) for x in (dout, q, k, v)),
        cu_q,
        cu_k,
        dlse=dlse,
        seqused_k=seqused,
        alibi_slopes=slopes,
        **how,
    )
    for result, exact in ((dq, wanted.dq), (dk, wanted.dk), (dv, wanted.dv)):
        few = 1e-5 * np.abs(exact).max()
        np.testing.assert_allclose(result.swapaxes(0, 1), exact, rtol=0, atol=few)
    exact = wanted.arrays["alibi_slopes"]
    np.testing.assert_allclose(total, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


# Keys that no query sees.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_by", ["causal", "window", "mask", "bias", "key_bias"])
@pytest.mark.usefixtures("small_blocks")
def test_what_no_query_sees_cannot_matter(hidden_by, dtype, bad):
    dout, dlse, q, k, v = problem(30, 60, heads=4, kv_heads=2, dtype=dtype)
    shown = np.arange(60) < 30
    arrays: dict[str, Array] = {}
    how: dict[str, Any] = {"softcap": 2.0, "causal": "top_left"}
    if hidden_by == "window":
        how["window"] = (5, 0)
    elif hidden_by == "mask":
        how |= {"mask": shown, "causal": False}
    elif hidden_by != "causal":
        arrays[hidden_by] = np.where(shown, np.float32(0.5), np.float32(-np.inf))
        how["causal"] = False
    clean, _, _ = run(dout, dlse, q, k, v, arrays, **how)
    k[:, :, 30:] = v[:, :, 30:] = bad
    dirty, _, _ = run(dout, dlse, q, k, v, arrays, **how)
    assert_same(dirty, clean)
    assert all(np.isfinite(gradient.astype(np.float32)).all() for gradient in clean.values())
    assert (clean["k"][:, :, 30:] == 0).all()
    assert (clean["v"][:, :, 30:] == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 17, 39])
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("name", ["nothing", "softcap", "bias", "mask", "dropout"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_number_reaches_what_it_reaches_in_the_reference(name, where, at, bad):
    dout, dlse, q, k, v = problem(40, 40, heads=4, kv_heads=2)
    arrays, how = features_for(name, (1, 4, 40, 40))
    how["causal"] = True
    {"q": q, "k": k, "v": v, "dout": dout}[where][:, 1, at] = bad
    result, _, _ = run(dout, dlse, q, k, v, arrays, **how)
    wanted = by_name(attention_reference_gradients(dout, q, k, v, dlse=dlse, **arrays, **how))
    for which, gradient in result.items():
        np.testing.assert_array_equal(np.isfinite(gradient), np.isfinite(wanted[which]), err_msg=which)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.usefixtures("small_blocks")
def test_a_row_that_sees_no_key_adds_nothing(bad):
    dout, dlse, q, k, v = problem(60, 35, heads=4, kv_heads=2)
    arrays, how = features_for("all", (1, 4, 60, 35))
    arrays["sink"][...] = -np.inf
    how["mask"][:, :, 30:33] = False
    how["causal"] = True
    clean, _, _ = run(dout, dlse, q, k, v, arrays, **how)
    blind = [*range(25), 30, 31, 32]
    assert (clean["q"][:, :, blind] == 0).all()
    for x in (q, dout, dlse):
        x[:, :, blind] = bad
    dirty, _, _ = run(dout, dlse, q, k, v, arrays, **how)
    assert_same(dirty, clean)
    assert all(np.isfinite(gradient).all() for gradient in clean.values())


@pytest.mark.parametrize("bad", [0.0, np.nan])
@pytest.mark.usefixtures("small_blocks")
def test_scores_that_are_all_minus_infinity_are_like_no_keys(bad):
    dout, dlse, q, k, v = problem(20, 30, heads=4, kv_heads=2)
    arrays, _ = features_for("all", (1, 4, 20, 30))
    arrays["sink"][...] = -np.inf
    v[:, :, 3] += bad
    result, _, _ = run(dout, dlse, np.abs(q), np.full_like(k, -np.inf), v, arrays)
    assert all((gradient == 0).all() for gradient in result.values())


@pytest.mark.parametrize(("threads", "products", "sweeps"), [(1, 5, 1), (2, 7, 2)])
@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_no_row_sees_are_skipped(threads, products, sweeps, monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    dout, dlse, q, k, v = problem(96, 96, heads=1)
    out, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    gradients = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    built, matmul, part, lock = {"products": 0, "parts": 0}, np.matmul, cpu._part, threading.Lock()

    def multiplied(*args, **how):
        with lock:
            built["products"] += 1
        return matmul(*args, **how)

    def met(*args):
        with lock:
            built["parts"] += 1
        return part(*args)

    monkeypatch.setattr(np, "matmul", multiplied)
    monkeypatch.setattr(cpu, "_part", met)

    def counted(**how):
        """Products, and the times that rows met keys, for a call."""
        built.update(products=0, parts=0)
        arguments = {"dlse": dlse, "softmax_scale": None, "threads": threads, **how}
        attention_gradients_cpu(dout, q, k, v, out, lse, *gradients, {}, **arguments)
        return built["products"], built["parts"]

    blocks = (96 // 16) * (96 // 24)
    assert counted(causal=False) == (products * blocks, sweeps * blocks)
    below = 1 + 2 + 2 + 3 + 4 + 4  # the last of 16, 32, 48, ... rows sees as many keys
    assert counted(causal=True) == (products * below, sweeps * below)
    halves = np.arange(96)[:, None] // 48 == np.arange(96) // 48
    assert counted(causal=False, mask=halves) == (products * blocks // 2, sweeps * blocks)
    # Blocks of 16 rows see 16 keys each, of one or of two blocks of 24 keys.
    assert counted(causal=True, window=(0, None)) == (products * 8, sweeps * 8)


# Bits, memory, threads.


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("window", [None, (17, 5)])
@pytest.mark.parametrize("bias", [1, 2])  # of each item of the batch, or of all
@pytest.mark.usefixtures("small_blocks")
def test_the_number_of_threads_changes_no_bit(kv_heads, window, bias, monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    arguments = problem(40, 50, heads=6, kv_heads=kv_heads, batch=2)
    arrays, how = features_for("all", (2, 6, 40, 50))
    arrays["bias"], how["window"] = arrays["bias"][:bias, :1], window
    wanted, _, _ = run(*arguments, arrays, causal=True, threads=1, **how)
    for threads in (None, 1, 2, 2, 2, 3, 5, 5, 5):
        assert_same(run(*arguments, arrays, causal=True, threads=threads, **how)[0], wanted)


@pytest.mark.parametrize(
    ("kv_heads", "threads", "sweeps"),
    [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 3, 2), (3, 2, 1), (6, 4, 1), (6, 5, 2), (12, 1, 1)],
)
@pytest.mark.parametrize("shares_a_bias", [False, True])
def test_two_sweeps_are_made_where_they_are_the_shorter_ones(
    kv_heads, threads, sweeps, shares_a_bias, monkeypatch
):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    task_counts, share_out = list[int](), cpu.share_out

    def shared_out(tasks, *of, **how):
        task_counts.append(len(tasks))
        share_out(tasks, *of, **how)

    monkeypatch.setattr(cpu, "share_out", shared_out)
    arrays = {"bias": np.ones((1, 1, 8, 8), np.float32)} if shares_a_bias else {}
    run(*problem(8, 8, heads=12, kv_heads=kv_heads), arrays, threads=threads)
    assert len(task_counts) == ((2 if threads > 1 else 1) if shares_a_bias else sweeps)


@pytest.mark.parametrize(("seq_q", "d", "d_v"), [(1, 7, 1), (1, 64, 3), (3, 1, 1), (5, 8, 4)])
def test_where_arrays_lie_with_what_strides_changes_no_bit(seq_q, d, d_v):
    for seq_k in (33, 257):
        arguments = problem(seq_q, seq_k, d, d_v=d_v, heads=1)
        wanted, _, _ = run(*arguments)
        for offset, gap in ((0, 0), (1, 0), (5, 0), (0, 1), (1, 3), (0, 16)):
            got, _, _ = run(*(placed(x, offset, gap) for x in arguments))
            assert_same(got, wanted)


def test_views_of_fused_arrays_are_read_and_written():
    rng = np.random.default_rng(0)
    qkv, dqkv = rounded_normal(rng, (2, 45, 3, 4, 24)), np.full((2, 45, 3, 4, 24), np.nan, np.float32)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    dout, dlse = rounded_normal(rng, q.shape), np.zeros(q.shape[:3], np.float32)
    result, out, lse = run(dout, dlse, q, k, v, causal=True)
    views = [dqkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    attention_gradients_cpu(dout, q, k, v, out, lse, *views, {}, softmax_scale=None, causal=True)
    assert_same(dict(zip("qkv", views, strict=True)), result)


def test_a_scale_that_would_overflow_q_is_applied_to_the_products():
    dout, dlse, q, k, v = (np.float32(1e-5) * x for x in problem(20, 30, 8))
    q[..., 0], k[..., 0] = 1e30, 0
    result, _, _ = run(dout, dlse, q, k, v, softmax_scale=1e10)
    wanted = by_name(attention_reference_gradients(dout, q, k, v, dlse=dlse, softmax_scale=1e10))
    for name, exact in wanted.items():
        few = 1e-5 * np.abs(exact).max(axis=(0, 1, 2))  # for each column: they differ by 2^100
        np.testing.assert_array_less(np.abs(result[name] - exact).max(axis=(0, 1, 2)), few + 1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("features", "nbytes"),
    [({}, 4), ({"alibi_slopes": np.ones(1, np.float32), "softcap": 2.0}, 32), ({"dropout": 0.1}, 90)],
    ids=["nothing", "alibi", "dropout"],
)
def test_memory_stays_within_the_documented_bound(features, nbytes, dtype):
    d, d_v, block = 32, 48, cpu.BLOCK_Q
    dout, _, q, k, v = problem(1024, 1024, d, d_v=d_v, heads=1, dtype=dtype)
    out, lse = np.zeros_like(dout), np.zeros(q.shape[:3], np.float32)
    gradients = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    how = {"softmax_scale": None, "causal": True, "threads": 1, **features}
    elements = 1024 + block * (2 * block + 4 * d + 3 * d_v + 2 * max(d, d_v) + 8)
    elements += 0 if q.dtype == np.float32 else 1024 * (d + d_v)
    tracemalloc.start()
    try:
        attention_gradients_cpu(dout, q, k, v, out, lse, *gradients, {}, **how)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 4 * elements + nbytes * block * block + 64 * 1024  # and Python's own objects


@pytest.mark.usefixtures("small_blocks")
def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    meet = threading.Barrier(2, timeout=30)

    def failing(*_):
        meet.wait()
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no more")
        return np.zeros((1, 16), np.float32)

    monkeypatch.setattr(cpu, "_delta", failing)
    with pytest.raises(MemoryError, match=r"^no more$"):
        run(*problem(32, 8, heads=1), threads=2)


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "seq_q", "seq_k"),
    [(0, 2, 1, 3, 4), (2, 2, 1, 0, 4), (2, 2, 1, 4, 0), (0, 2, 1, 0, 0), (1, 0, 2, 2, 2)],
)
def test_nothing_to_sum_gives_zeros(batch, heads, kv_heads, seq_q, seq_k):
    arguments = problem(seq_q, seq_k, heads=heads, kv_heads=kv_heads, batch=batch)
    result, _, _ = run(*arguments, {"bias": np.ones((1, 1), np.float32)})
    assert all((gradient == 0).all() for gradient in result.values())


def test_an_unknown_causal_word_is_refused_before_anything_is_written():
    dout, dlse, q, k, v = problem(3, 3)
    dq = np.full_like(q, 7)
    with pytest.raises(ConfigError) as error:
        attention_gradients_cpu(dout, q, k, v, dout, dlse, dq, dq, dq, {}, softmax_scale=None, causal="right")
    assert str(error.value) == (
        "attention: causal must be False, True, 'bottom_right' or 'top_left', got 'right'"
    )
    assert (dq == 7).all()
