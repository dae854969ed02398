"""The kernels of docs/gallery.md in Triton, for `tools/bench.py --only gallery`.

They compute what ours compute, for any sizes, with the same tiles, warps and types, as Triton's
tutorials write them. Compiling them needs the package triton and no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language import constexpr


@triton.jit
def softmax(x, y, columns, BLOCK: constexpr):
    """Softmax of each row of X."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    weights = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * columns + at, weights / tl.sum(weights, axis=0), mask=inside)


@triton.jit
def layer_norm(x, weight, y, columns, eps, BLOCK: constexpr):
    """Each row of X less its mean, over its deviation, times the weights."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(v, axis=0) / columns
    apart = tl.where(inside, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / columns + eps)
    w = tl.load(weight + at, mask=inside)
    tl.store(y + row * columns + at, apart * scale * w, mask=inside)


@triton.jit
def gemm(a, b, c, m, n, depth, ROWS: constexpr, COLUMNS: constexpr, STEP: constexpr):
    """C = A B."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    down, across = tl.arange(0, STEP)[:, None], tl.arange(0, STEP)[None, :]
    a_at, b_at = a + row * depth + across, b + down * n + column
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, depth, STEP):
        x = tl.load(a_at, mask=(row < m) & (across < depth - first), other=0.0)
        y = tl.load(b_at, mask=(down < depth - first) & (column < n), other=0.0)
        acc = tl.dot(x, y, acc)
        a_at += STEP
        b_at += STEP * n
    tl.store(c + row * n + column, acc, mask=(row < m) & (column < n))


@triton.jit
def attention_step(
    total, row_sum, row_max, q, k_at, v_at, i, first, keys, in_log2, MASKED, CAUSAL, STEP: constexpr, D
):
    """The step of `attention` for one block of keys."""
    j = first + tl.arange(0, STEP)
    k = tl.load(k_at + first * D, mask=(j < keys)[None, :], other=0.0)
    s = tl.dot(q, k)
    if MASKED:
        seen = (j < keys)[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        s = tl.where(seen, s, -float("inf"))
    new_max = tl.maximum(row_max, tl.max(s, axis=1))
    p = tl.exp2(s * in_log2 - (new_max * in_log2)[:, None])
    rescale = tl.exp2((row_max - new_max) * in_log2)
    row_sum = row_sum * rescale + tl.sum(p, axis=1)
    v = tl.load(v_at + first * D, mask=(j < keys)[:, None], other=0.0)
    total = tl.dot(p.to(v.dtype), v, total * rescale[:, None])
    return total, row_sum, new_max


@triton.jit
def attention(
    q, k, v, o, queries, keys, scale, CAUSAL: constexpr, D: constexpr, ROWS: constexpr, STEP: constexpr
):
    """O = softmax(scale Q Kᵀ) V; only blocks of keys that need a mask have one."""
    head, first_row = tl.program_id(1), tl.program_id(0) * ROWS
    i, d, j = first_row + tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, STEP)
    inside = (i < queries)[:, None]
    q_block = tl.load(q + (head * queries + i[:, None]) * D + d[None, :], mask=inside, other=0.0)
    k_at = k + head * keys * D + d[:, None] + j[None, :] * D
    v_at = v + head * keys * D + d[None, :] + j[:, None] * D
    row_max = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    row_sum, total = tl.zeros((ROWS,), dtype=tl.float32), tl.zeros((ROWS, D), dtype=tl.float32)
    in_log2, end, whole = scale * 1.4426950408889634, keys, keys // STEP * STEP
    if CAUSAL:
        end = tl.minimum(keys, first_row + ROWS)
        whole = tl.minimum(whole, first_row // STEP * STEP)
    for first in range(0, whole, STEP):
        total, row_sum, row_max = attention_step(
            total, row_sum, row_max, q_block, k_at, v_at, i, first, keys, in_log2, False, CAUSAL, STEP, D
        )
    for first in range(whole, end, STEP):
        total, row_sum, row_max = attention_step(
            total, row_sum, row_max, q_block, k_at, v_at, i, first, keys, in_log2, True, CAUSAL, STEP, D
        )
    result = (total / row_sum[:, None]).to(o.dtype.element_ty)
    tl.store(o + (head * queries + i[:, None]) * D + d[None, :], result, mask=inside)


@triton.jit
def blackwell_gemm(a, b, c, m, n, depth, ROWS: constexpr, COLUMNS: constexpr, STEP: constexpr):
    """C = A B by copies of boxes, and products in tensor memory."""
    row, column = tl.program_id(1) * ROWS, tl.program_id(0) * COLUMNS
    a_boxes = tl.make_tensor_descriptor(a, [m, depth], [depth, 1], [ROWS, STEP])
    b_boxes = tl.make_tensor_descriptor(b, [depth, n], [n, 1], [STEP, COLUMNS])
    c_boxes = tl.make_tensor_descriptor(c, [m, n], [n, 1], [ROWS, COLUMNS])
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, depth, STEP):
        acc = tl.dot(a_boxes.load([row, first]), b_boxes.load([first, column]), acc)
    c_boxes.store([row, column], acc.to(tl.float16))


@triton.jit
def nvf4_gemm(a, b, fa, fb, c, m, n, depth, ROWS: constexpr, COLUMNS: constexpr, STEP: constexpr):
    """C = A Bᵀ of elements of four bits with a factor for each 16; `depth` is a multiple of STEP."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    pairs, blocks = tl.arange(0, STEP // 2)[None, :], tl.arange(0, STEP // 16)[None, :]
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, depth, STEP):
        x = tl.load(a + row * (depth // 2) + first // 2 + pairs, mask=row < m, other=0)
        y = tl.load(b + column * (depth // 2) + first // 2 + pairs, mask=column < n, other=0)
        of_x = tl.load(fa + row * (depth // 16) + first // 16 + blocks, mask=row < m, other=0.0)
        of_y = tl.load(fb + column * (depth // 16) + first // 16 + blocks, mask=column < n, other=0.0)
        acc = tl.dot_scaled(x, of_x, "e2m1", y.T, of_y, "e2m1", acc)
    across = tl.trans(column)
    tl.store(c + row * n + across, acc, mask=(row < m) & (across < n))


@triton.jit
def moe_gemm(
    x, w, pair, expert, y, pairs, depth, columns, TOP: constexpr, M: constexpr, N: constexpr, K: constexpr
):
    """The product of each pair's token with the weights of its expert."""
    rows = tl.load(pair + tl.program_id(1) * M + tl.arange(0, M))[:, None]
    inside = (rows >= 0) & (rows < pairs)
    column = tl.program_id(0) * N + tl.arange(0, N)[None, :]
    of = tl.load(expert + tl.program_id(1)) * columns
    step = tl.arange(0, K)
    x_at = x + rows // TOP * depth + step[None, :]
    w_at = w + (of + column).to(tl.int64) * depth + step[:, None]
    acc = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, depth, K):
        a = tl.load(x_at, mask=inside & (step[None, :] < depth - first), other=0.0)
        b = tl.load(w_at, mask=(step[:, None] < depth - first) & (column < columns), other=0.0)
        acc = tl.dot(a, b, acc)
        x_at += K
        w_at += K
    tl.store(y + rows * columns + column, acc, mask=inside & (column < columns))


@triton.jit
def int4_gemm(x, w, scale, y, m, n, groups, ROWS: constexpr, COLUMNS: constexpr, GROUP: constexpr):
    """Y = X Wᵀ of weights of four bits less 8, with a factor for each group of a column."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    step, pairs = tl.arange(0, GROUP)[None, :], tl.arange(0, GROUP // 2)[None, :]
    inside = (column < n)[:, None]
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for group in range(groups):
        a = tl.load(x + row * (groups * GROUP) + group * GROUP + step, mask=row < m, other=0.0)
        at = w + column[:, None] * (groups * (GROUP // 2)) + group * (GROUP // 2) + pairs
        b = tl.load(at, mask=inside, other=0)
        both = tl.join(b & 15, b >> 4).reshape(COLUMNS, GROUP)
        factors = tl.load(scale + group * n + column, mask=column < n, other=0.0)
        acc += tl.dot(a, (both.to(tl.float16) - 8).T) * factors[None, :]
    tl.store(y + row * n + column[None, :], acc, mask=(row < m) & (column < n)[None, :])


@triton.jit
def norm_quantised(x, weight, q, scale, columns, eps, BLOCK: constexpr):
    """RMSNorm of each row in int8, and the row's factor."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    norm = tl.rsqrt(tl.sum(v * v, axis=0) / columns + eps)
    v *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(v), axis=0), 1e-20)
    tl.store(q + row * columns + at, tl.extra.cuda.libdevice.rint(v * (127 / top)).to(tl.int8), mask=inside)
    tl.store(scale + row, top * norm / 127)


@triton.jit
def paged_gather(pool, pages, y, rows, slots, PAGE: constexpr, D: constexpr, ROWS: constexpr):
    """The rows of a sequence, from pages."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.load(pages + i // PAGE, mask=i < rows, other=0) * PAGE + i % PAGE
    inside = ((i < rows) & (source < slots))[:, None]
    d = tl.arange(0, D)[None, :]
    tl.store(y + i[:, None] * D + d, tl.load(pool + source[:, None] * D + d, mask=inside), mask=inside)


@dataclass(frozen=True)
class Variant:
    """Functions of which the first is the kernel, and what it is compiled for; parameters in
    `aligned` are multiples of 16, as ours are of 16 bytes.
    """

    functions: Sequence[Any]
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: Sequence[str]
    warps: int = 4
    stages: int = 3


F32, F16, I32, U8, E4M3, I8, INDEX = "*fp32", "*fp16", "i32", "*u8", "*fp8e4nv", "*i8", "*i32"
KERNELS = {
    "softmax": Variant([softmax], {"x": F32, "y": F32, "columns": I32}, {"BLOCK": 1024}, ("x", "y"), warps=8),
    "layer_norm": Variant(
        [layer_norm],
        {"x": F32, "weight": F32, "y": F32, "columns": I32, "eps": "fp32"},
        {"BLOCK": 1024},
        ("x", "weight", "y"),
    ),
    "gemm": Variant(
        [gemm],
        {"a": F16, "b": F16, "c": F32, "m": I32, "n": I32, "depth": I32},
        {"ROWS": 128, "COLUMNS": 128, "STEP": 32},
        ("a", "b", "c", "n", "depth"),
    ),
    "attention": Variant(
        [attention, attention_step],
        {"q": F16, "k": F16, "v": F16, "o": F16, "queries": I32, "keys": I32, "scale": "fp32"},
        {"CAUSAL": False, "D": 64, "ROWS": 128, "STEP": 64},
        ("q", "k", "v", "o"),
        stages=2,
    ),
    "moe_gemm": Variant(
        [moe_gemm],
        {
            "x": F16,
            "w": F16,
            "pair": INDEX,
            "expert": INDEX,
            "y": F32,
            "pairs": I32,
            "depth": I32,
            "columns": I32,
        },
        {"TOP": 2, "M": 64, "N": 64, "K": 32},
        ("x", "w", "pair", "y", "depth", "columns"),
    ),
    "int4_gemm": Variant(
        [int4_gemm],
        {"x": F16, "w": U8, "scale": F16, "y": F32, "m": I32, "n": I32, "groups": I32},
        {"ROWS": 64, "COLUMNS": 64, "GROUP": 64},
        ("x", "w", "scale", "y", "n"),
    ),
    "norm_quantised": Variant(
        [norm_quantised],
        {"x": F16, "weight": F16, "q": I8, "scale": F32, "columns": I32, "eps": "fp32"},
        {"BLOCK": 1024},
        ("x", "weight", "q"),
    ),
    "paged_gather": Variant(
        [paged_gather],
        {"pool": F32, "pages": INDEX, "y": F32, "rows": I32, "slots": I32},
        {"PAGE": 16, "D": 128, "ROWS": 8},
        ("pool", "y"),
        warps=8,
    ),
    "blackwell_gemm": Variant(
        [blackwell_gemm],
        {"a": F16, "b": F16, "c": F16, "m": I32, "n": I32, "depth": I32},
        {"ROWS": 128, "COLUMNS": 128, "STEP": 64},
        ("a", "b", "c", "n", "depth"),
        stages=4,
    ),
    "nvf4_gemm": Variant(
        [nvf4_gemm],
        {"a": U8, "b": U8, "fa": E4M3, "fb": E4M3, "c": F32, "m": I32, "n": I32, "depth": I32},
        {"ROWS": 128, "COLUMNS": 128, "STEP": 256},
        ("a", "b", "fa", "fb", "c", "n", "depth"),
    ),
}


def source(name: str) -> str:
    """The source of a kernel's functions."""
    return "\n".join(f"@triton.jit\n{function.src}" for function in KERNELS[name].functions)


def compiled(name: str, capability: int) -> Mapping[str, Any]:
    """The output of Triton for a kernel and a GPU of this compute capability, such as 80: `ptx` and
    `cubin`. Nothing is kept from one call to the next.
    """
    variant = KERNELS[name]
    kernel = variant.functions[0]
    signature = dict(variant.signature) | dict.fromkeys(variant.constants, "constexpr")
    indices = {parameter: (n,) for n, parameter in enumerate(kernel.arg_names)}
    compilation = triton.compile(
        ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={indices[constant]: value for constant, value in variant.constants.items()},
            attrs={indices[parameter]: [["tt.divisibility", 16]] for parameter in variant.aligned},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": variant.warps, "num_stages": variant.stages},
    )
    return dict(compilation.asm)


triton.knobs.compilation.always_compile = True
