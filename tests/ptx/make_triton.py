"""Compile Triton kernels to PTX fixtures, without a GPU: `python tests/ptx/make_triton.py`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


def _variants() -> list[Variant]:
    made = [
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
        made.append(
            Variant(
                f"attention{suffix}",
                attention,
                ATTENTION,
                {"CAUSAL": causal, "BM": 64, "BN": 32, "D": 64},
                stages=2,
                aligned=("q", "k", "v", "out"),
            )
        )
        made.append(
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
            made.append(
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
    return made


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
    found = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)", text)
    assert found, f"no entry in the PTX of {variant.name}"
    return text, {
        "entry": found[1],
        "signature": dict(variant.signature),
        "parameters": [line.strip().rstrip(",") for line in found[2].strip().splitlines()],
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
            out.write_text(text)
            out.with_suffix(".json").write_text(json.dumps(facts, indent=2, default=str) + "\n")
            sys.stdout.write(f"{out.relative_to(HERE)}: {out.stat().st_size} bytes\n")
    versions = {"triton": triton.__version__, "ptx_version": PTX_VERSION}
    (FIXTURES / "VERSIONS.json").write_text(json.dumps(versions, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
