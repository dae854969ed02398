"""Compile Triton kernels to PTX fixtures, without a GPU: `python tests/ptx/make_triton.py`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
FIXTURES = HERE / "triton"
PTX_VERSION = 87  # one that the toolkit of the other fixtures assembles, not the newest

_EPILOG = """\
Beside each PTX file lies a JSON file with the entry, its parameters in order (Triton adds two of
its own, pointers to scratch memory that is not used here), the block, the bytes of dynamic shared
memory and the constants it was compiled with. Needs the package triton and no GPU. The fixtures in
the repository need neither to be tested.
"""


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    sums = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, sums, mask=inside)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * stride + at, mask=inside, other=-float("inf"))
    weights = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + at, weights / tl.sum(weights, axis=0), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / columns
    apart = tl.where(inside, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=0) / columns + epsilon)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(out + row * columns + at, apart * scale * w + b, mask=inside)


@triton.jit
def histogram(x, bins, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + at, mask=at < n, other=0), BINS, mask=at < n)
    tl.atomic_add(bins + tl.arange(0, BINS), counts)


@triton.jit
def running_sum(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), axis=0))


@triton.jit
def sort_rows(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def matmul(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a + rows[:, None] * k + inner[None, :]
    b_at = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total)
        a_at += BK
        b_at += BK * n
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def matmul_descriptor(a_map, b_map, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, k, BK):
        total = tl.dot(a_map.load([row, first]), b_map.load([first, column]), total)
    rows = row + tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attention_step(
    total,
    weight_sum,
    highest,
    q,
    k_at,
    v_at,
    rows,
    first,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    key = first + tl.arange(0, BN)
    inside = key < keys
    k = tl.load(k_at + key[None, :] * D, mask=inside[None, :], other=0.0)
    scores = tl.dot(q, k) * scale
    seen = inside[None, :]
    if CAUSAL:
        seen = seen & (rows[:, None] >= key[None, :])
    scores = tl.where(seen, scores, -1.0e38)
    now = tl.maximum(highest, tl.max(scores, axis=1))
    keep = tl.exp2(highest - now)
    weights = tl.exp2(scores - now[:, None])
    weight_sum = weight_sum * keep + tl.sum(weights, axis=1)
    v = tl.load(v_at + key[:, None] * D, mask=inside[:, None], other=0.0)
    total = tl.dot(weights.to(v.dtype), v, total * keep[:, None])
    return total, weight_sum, now


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    queries,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    head = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    inside = (rows < queries)[:, None]
    q_tile = tl.load(q + (head * queries + rows[:, None]) * D + d[None, :], mask=inside, other=0.0)
    k_at = k + head * keys * D + d[:, None]
    v_at = v + head * keys * D + d[None, :]
    highest = tl.full((BM,), -1.0e38, dtype=tl.float32)
    weight_sum = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, (tl.program_id(0) + 1) * BM)
    for first in range(0, end, BN):
        total, weight_sum, highest = attention_step(
            total,
            weight_sum,
            highest,
            q_tile,
            k_at,
            v_at,
            rows,
            first,
            keys,
            scale * 1.4426950408889634,
            CAUSAL,
            BN,
            D,
        )
    result = (total / weight_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + (head * queries + rows[:, None]) * D + d[None, :], result, mask=inside)


@triton.jit
def attention_forward_step(
    total,
    weight_sum,
    highest,
    q,
    k_at,
    v_at,
    rows,
    first,
    keys,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    key = first + tl.arange(0, BN)
    inside = key < keys
    k = tl.load(k_at + first * D, mask=inside[None, :], other=0.0) if MASKED else tl.load(k_at + first * D)
    scores = tl.dot(q, k)
    if MASKED:
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= key[None, :])
        scores = tl.where(seen, scores * scale, -1.0e6)
        now = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - now[:, None])
    else:
        now = tl.maximum(highest, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - now[:, None])
    keep = tl.exp2(highest - now)
    weight_sum = weight_sum * keep + tl.sum(weights, axis=1)
    v = tl.load(v_at + first * D, mask=inside[:, None], other=0.0) if MASKED else tl.load(v_at + first * D)
    total = tl.dot(weights.to(v.dtype), v, total * keep[:, None])
    return total, weight_sum, now


# As Triton's tutorial on fused attention has it, and as one tunes it: only tiles that need a mask
# have one, the scale is folded into the exponent. What tools/bench.py measures our kernels against.
@triton.jit
def attention_forward(
    q,
    k,
    v,
    out,
    queries,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    head = tl.program_id(1)
    first_row = tl.program_id(0) * BM
    rows = first_row + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    inside = (rows < queries)[:, None]
    q_tile = tl.load(q + (head * queries + rows[:, None]) * D + d[None, :], mask=inside, other=0.0)
    k_at = k + head * keys * D + d[:, None] + n[None, :] * D
    v_at = v + head * keys * D + d[None, :] + n[:, None] * D
    highest = tl.full((BM,), -float("inf"), dtype=tl.float32)
    weight_sum = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    in_log2 = scale * 1.4426950408889634
    end = keys
    whole = keys // BN * BN
    if CAUSAL:
        end = tl.minimum(keys, first_row + BM)
        whole = tl.minimum(whole, first_row // BN * BN)
    for first in range(0, whole, BN):
        total, weight_sum, highest = attention_forward_step(
            total, weight_sum, highest, q_tile, k_at, v_at, rows, first, keys, in_log2, False, CAUSAL, BN, D
        )
    for first in range(whole, end, BN):
        total, weight_sum, highest = attention_forward_step(
            total, weight_sum, highest, q_tile, k_at, v_at, rows, first, keys, in_log2, True, CAUSAL, BN, D
        )
    result = (total / weight_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + (head * queries + rows[:, None]) * D + d[None, :], result, mask=inside)


# The two kernels of the backward pass of Triton's tutorial, as one tunes them: only tiles that need a
# mask have one, the scale is folded into the exponent, LSE is natural. What tools/bench.py measures our
# kernels of gradients against.
@triton.jit
def attention_backward_keys_step(
    dk,
    dv,
    k,
    v,
    q_at,
    do_at,
    lse,
    delta,
    first,
    keys_at,
    queries,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    D: tl.constexpr,
):
    rows = first + tl.arange(0, BM)
    inside = rows < queries
    if MASKED:
        qT = tl.load(q_at + first * D, mask=inside[None, :], other=0.0)
        m = tl.load(lse + rows, mask=inside, other=0.0)
    else:
        qT = tl.load(q_at + first * D)
        m = tl.load(lse + rows)
    sT = tl.dot(k, qT)
    pT = tl.exp2(sT * scale - m[None, :] * 1.4426950408889634)
    if MASKED:
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (rows[None, :] >= keys_at[:, None])
        pT = tl.where(seen, pT, 0.0)
    if MASKED:
        do = tl.load(do_at + first * D, mask=inside[:, None], other=0.0)
        Di = tl.load(delta + rows, mask=inside, other=0.0)
    else:
        do = tl.load(do_at + first * D)
        Di = tl.load(delta + rows)
    dv = tl.dot(pT.to(do.dtype), do, dv)
    dpT = tl.dot(v, tl.trans(do))
    dsT = pT * (dpT - Di[None, :])
    dk = tl.dot(dsT.to(qT.dtype), tl.trans(qT), dk)
    return dk, dv


@triton.jit
def attention_backward_keys(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dk_out,
    dv_out,
    queries,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    head = tl.program_id(1)
    first_key = tl.program_id(0) * BN
    kn = first_key + tl.arange(0, BN)
    d = tl.arange(0, D)
    m = tl.arange(0, BM)
    kin = (kn < keys)[:, None]
    k_tile = tl.load(k + (head * keys + kn[:, None]) * D + d[None, :], mask=kin, other=0.0)
    v_tile = tl.load(v + (head * keys + kn[:, None]) * D + d[None, :], mask=kin, other=0.0)
    dk = tl.zeros((BN, D), dtype=tl.float32)
    dv = tl.zeros((BN, D), dtype=tl.float32)
    q_at = q + head * queries * D + d[:, None] + m[None, :] * D
    do_at = do + head * queries * D + d[None, :] + m[:, None] * D
    lse += head * queries
    delta += head * queries
    in_log2 = scale * 1.4426950408889634
    begin = 0
    cut = 0
    whole = queries // BM * BM
    if CAUSAL:
        begin = first_key // BM * BM
        cut = tl.minimum((first_key + BN + BM - 1) // BM * BM, whole)
        for first in range(begin, cut, BM):
            dk, dv = attention_backward_keys_step(
                dk,
                dv,
                k_tile,
                v_tile,
                q_at,
                do_at,
                lse,
                delta,
                first,
                kn,
                queries,
                in_log2,
                True,
                CAUSAL,
                BM,
                D,
            )
    for first in range(cut, whole, BM):
        dk, dv = attention_backward_keys_step(
            dk, dv, k_tile, v_tile, q_at, do_at, lse, delta, first, kn, queries, in_log2, False, CAUSAL, BM, D
        )
    for first in range(whole, queries, BM):
        dk, dv = attention_backward_keys_step(
            dk, dv, k_tile, v_tile, q_at, do_at, lse, delta, first, kn, queries, in_log2, True, CAUSAL, BM, D
        )
    to = (head * keys + kn[:, None]) * D + d[None, :]
    tl.store(dv_out + to, dv.to(dv_out.dtype.element_ty), mask=kin)
    tl.store(dk_out + to, (dk * scale).to(dk_out.dtype.element_ty), mask=kin)


@triton.jit
def attention_backward_queries_step(
    dq,
    q,
    do,
    m,
    Di,
    k_at,
    v_at,
    first,
    rows,
    keys,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    key = first + tl.arange(0, BN)
    inside = key < keys
    if MASKED:
        kT = tl.load(k_at + first * D, mask=inside[None, :], other=0.0)
        vT = tl.load(v_at + first * D, mask=inside[None, :], other=0.0)
    else:
        kT = tl.load(k_at + first * D)
        vT = tl.load(v_at + first * D)
    s = tl.dot(q, kT)
    p = tl.exp2(s * scale - m[:, None])
    if MASKED:
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= key[None, :])
        p = tl.where(seen, p, 0.0)
    dp = tl.dot(do, vT)
    ds = p * (dp - Di[:, None])
    return tl.dot(ds.to(kT.dtype), tl.trans(kT), dq)


@triton.jit
def attention_backward_queries(
    q,
    k,
    v,
    do,
    lse,
    delta,
    dq_out,
    queries,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    head = tl.program_id(1)
    first_row = tl.program_id(0) * BM
    rows = first_row + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    ins = rows < queries
    inside = ins[:, None]
    at = (head * queries + rows[:, None]) * D + d[None, :]
    q_tile = tl.load(q + at, mask=inside, other=0.0)
    do_tile = tl.load(do + at, mask=inside, other=0.0)
    m = tl.load(lse + head * queries + rows, mask=ins, other=0.0) * 1.4426950408889634
    Di = tl.load(delta + head * queries + rows, mask=ins, other=0.0)
    k_at = k + head * keys * D + d[:, None] + n[None, :] * D
    v_at = v + head * keys * D + d[:, None] + n[None, :] * D
    dq = tl.zeros((BM, D), dtype=tl.float32)
    in_log2 = scale * 1.4426950408889634
    end = keys
    whole = keys // BN * BN
    if CAUSAL:
        end = tl.minimum(keys, first_row + BM)
        whole = tl.minimum(whole, first_row // BN * BN)
    for first in range(0, whole, BN):
        dq = attention_backward_queries_step(
            dq, q_tile, do_tile, m, Di, k_at, v_at, first, rows, keys, in_log2, False, CAUSAL, BN, D
        )
    for first in range(whole, end, BN):
        dq = attention_backward_queries_step(
            dq, q_tile, do_tile, m, Di, k_at, v_at, first, rows, keys, in_log2, True, CAUSAL, BN, D
        )
    tl.store(dq_out + at, (dq * scale).to(dq_out.dtype.element_ty), mask=inside)


@triton.jit
def attention_descriptor(
    q_map,
    k_map,
    v_map,
    out_map,
    keys,
    scale,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    row = tl.program_id(0) * BM
    q = q_map.load([row, 0])
    rows = row + tl.arange(0, BM)
    highest = tl.full((BM,), -1.0e38, dtype=tl.float32)
    weight_sum = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    end = keys
    if CAUSAL:
        end = row + BM
    for first in range(0, end, BN):
        scores = tl.dot(q, k_map.load([first, 0]).T) * (scale * 1.4426950408889634)
        if CAUSAL:
            key = first + tl.arange(0, BN)
            scores = tl.where(rows[:, None] >= key[None, :], scores, -1.0e38)
        now = tl.maximum(highest, tl.max(scores, axis=1))
        keep = tl.exp2(highest - now)
        weights = tl.exp2(scores - now[:, None])
        weight_sum = weight_sum * keep + tl.sum(weights, axis=1)
        v = v_map.load([first, 0])
        total = tl.dot(weights.to(v.dtype), v, total * keep[:, None])
        highest = now
    out_map.store([row, 0], (total / weight_sum[:, None]).to(q.dtype))


@dataclass(frozen=True)
class Variant:
    """A kernel, what it is compiled for, and the name of its fixture without the target."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 3
    compute: tuple[int, ...] = (80, 90)
    aligned: Sequence[str] = field(default=())  # parameters that are multiples of 16


F32, F16, I32 = "*fp32", "*fp16", "i32"
MATMUL = {"a": F16, "b": F16, "c": F32, "n": I32, "k": I32}
ATTENTION = {"q": F16, "k": F16, "v": F16, "out": F16, "queries": I32, "keys": I32, "scale": "fp32"}
POINTERS = ("a", "b", "c", "n", "k")
_OF_BACKWARD = {"q": F16, "k": F16, "v": F16, "do": F16, "lse": F32, "delta": F32}
_SIZES = {"queries": I32, "keys": I32, "scale": "fp32"}
BACKWARD_KEYS = {**_OF_BACKWARD, "dk_out": F16, "dv_out": F16, **_SIZES}
BACKWARD_QUERIES = {**_OF_BACKWARD, "dq_out": F16, **_SIZES}
# (head_dim, BM, BN, warps): of those tried, the largest share of tensor cores in the issue model on sm_80.
TUNED_KEYS = ((64, 32, 128, 4), (128, 64, 64, 4), (256, 32, 64, 8))
TUNED_QUERIES = ((64, 128, 32, 4), (128, 64, 64, 4), (256, 64, 32, 8))


def _variants() -> list[Variant]:
    built = [
        Variant(
            "vector_add",
            vector_add,
            {"x": F32, "y": F32, "out": F32, "n": I32},
            {"BLOCK": 256},
            aligned=("x", "y", "out"),
        ),
        Variant("softmax", softmax, {"x": F32, "out": F32, "stride": I32, "columns": I32}, {"BLOCK": 256}),
        Variant(
            "layer_norm",
            layer_norm,
            {"x": F16, "weight": F32, "bias": F32, "out": F16, "columns": I32, "epsilon": "fp32"},
            {"BLOCK": 256},
        ),
        Variant("histogram", histogram, {"x": "*i32", "bins": "*i32", "n": I32}, {"BLOCK": 256, "BINS": 32}),
        Variant("running_sum", running_sum, {"x": F32, "out": F32}, {"BLOCK": 256}),
        Variant("sort_rows", sort_rows, {"x": F32, "out": F32}, {"BLOCK": 64}),
        Variant(
            "matmul_2_stages", matmul, MATMUL, {"BM": 32, "BN": 32, "BK": 32}, stages=2, aligned=POINTERS
        ),
        Variant("matmul_3_stages", matmul, MATMUL, {"BM": 64, "BN": 64, "BK": 32}, aligned=POINTERS),
        Variant(
            "matmul_f32",
            matmul,
            MATMUL | {"a": F32, "b": F32},
            {"BM": 32, "BN": 32, "BK": 16},
            stages=2,
            aligned=POINTERS,
        ),
        Variant(
            "matmul_descriptor",
            matmul_descriptor,
            {
                "a_map": "tensordesc<fp16[64,64]>",
                "b_map": "tensordesc<fp16[64,64]>",
                "c": F32,
                "n": I32,
                "k": I32,
            },
            {"BM": 64, "BN": 64, "BK": 64},
            stages=2,
            compute=(90,),
            aligned=("c", "n", "k"),
        ),
    ]
    for causal in (False, True):
        suffix = "_causal" if causal else ""
        built.append(
            Variant(
                f"attention{suffix}",
                attention,
                ATTENTION,
                {"CAUSAL": causal, "BM": 64, "BN": 32, "D": 64},
                stages=2,
                aligned=("q", "k", "v", "out"),
            )
        )
        built.append(
            Variant(
                f"attention_descriptor{suffix}",
                attention_descriptor,
                {
                    f"{name}_map": f"tensordesc<fp16[{rows},64]>"
                    for name, rows in (("q", 64), ("k", 64), ("v", 64), ("out", 64))
                }
                | {"keys": I32, "scale": "fp32"},
                {"CAUSAL": causal, "BM": 64, "BN": 64, "D": 64},
                stages=2,
                compute=(90,),
            )
        )
    # Warps and stages with which ptxas spills least, and of those the fewest instructions run.
    for head_dim, warps, stages in ((64, 4, 3), (128, 8, 2)):
        for causal in (False, True):
            suffix = "_causal" if causal else ""
            built.append(
                Variant(
                    f"attention_forward_d{head_dim}{suffix}",
                    attention_forward,
                    ATTENTION,
                    {"CAUSAL": causal, "BM": 128, "BN": 64, "D": head_dim},
                    warps=warps,
                    stages=stages,
                    compute=(80,),
                    aligned=("q", "k", "v", "out"),
                )
            )
    for head_dim, keys in ((64, 128), (128, 128), (256, 64)):
        built.append(
            Variant(
                f"attention_forward_hopper_d{head_dim}",
                attention_forward,
                ATTENTION,
                {"CAUSAL": False, "BM": 128, "BN": keys, "D": head_dim},
                warps=8,
                stages=2,
                compute=(90,),
                aligned=("q", "k", "v", "out"),
            )
        )
    for owner, kernel, signature, tuned in (
        ("keys", attention_backward_keys, BACKWARD_KEYS, TUNED_KEYS),
        ("queries", attention_backward_queries, BACKWARD_QUERIES, TUNED_QUERIES),
    ):
        for (head_dim, rows, columns, warps), causal in product(tuned, (False, True)):
            built.append(
                Variant(
                    f"backward/{owner}_d{head_dim}{'_causal' if causal else ''}",
                    kernel,
                    signature,
                    {"CAUSAL": causal, "BM": rows, "BN": columns, "D": head_dim},
                    warps=warps,
                    stages=2,
                    compute=(80,),
                    aligned=[name for name, kind in signature.items() if kind.startswith("*")],
                )
            )
    return built


def cleaned(text: str) -> str:
    """The PTX without what names the machine it was made on: debug sections, .loc, .file."""
    text = text.split("\t.section\t.debug", maxsplit=1)[0]
    text = re.sub(r"^\t\.(loc|file)\b.*\n", "", text, flags=re.MULTILINE)
    return text.rstrip() + "\n"


def fixture(variant: Variant, compute: int) -> tuple[str, dict[str, Any]]:
    """The PTX of the variant and what its JSON file says."""
    signature = {**variant.signature, **dict.fromkeys(variant.constants, "constexpr")}
    order = list(signature)
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs=dict(variant.constants),
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {
        "num_warps": variant.warps,
        "num_stages": variant.stages,
        "ptx_version": PTX_VERSION,
        "enable_fp_fusion": True,
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", compute, 32), options=options)
    text = cleaned(compiled.asm["ptx"])
    maps = compiled.metadata.tensordesc_meta
    result = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)", text)
    assert result, f"no entry in the PTX of {variant.name}"
    return text, {
        "entry": result[1],
        "signature": dict(variant.signature),
        "parameters": [line.strip().rstrip(",") for line in result[2].strip().splitlines()],
        "constants": dict(variant.constants),
        "block": compiled.metadata.num_warps * 32,
        "shared": compiled.metadata.shared,
        "num_stages": variant.stages,
        "tensor_maps": maps,
        "triton": triton.__version__,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Make the fixtures of the named variants, or of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", help="names of variants; all by default")
    arguments = parser.parse_args(argv)
    FIXTURES.mkdir(exist_ok=True)
    for variant in _variants():
        if arguments.variants and variant.name not in arguments.variants:
            continue
        for compute in variant.compute:
            text, facts = fixture(variant, compute)
            target = re.search(r"^\.target (\w+)", text, re.MULTILINE)
            assert target, f"no target in the PTX of {variant.name}"
            out = FIXTURES / f"{variant.name}.{target[1]}.ptx"
            out.parent.mkdir(exist_ok=True)
            out.write_text(text)
            out.with_suffix(".json").write_text(json.dumps(facts, indent=2, default=str) + "\n")
            sys.stdout.write(f"{out.relative_to(HERE)}: {out.stat().st_size} bytes\n")
    versions = {"triton": triton.__version__, "ptx_version": PTX_VERSION}
    (FIXTURES / "VERSIONS.json").write_text(json.dumps(versions, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
