"""Kernels beside their formulas, in exact arithmetic."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from ptxgen.algebra import Comparison, Exact, compare
from ptxgen.errors import LaunchError
from ptxgen.mutation.kernel_under_test import KernelUnderTest
from ptxgen.mutation.operators import mutants
from tools.campaign.kernels import subjects

LOG2_E = np.float32(np.log2(np.e))
LANES = np.arange(32)


def text(body: str, *, shared: int = 0) -> str:
    """A kernel of one warp with arrays A, B and Y of f32, in which each lane has the elements %f0 of A and
    %f1 of B, and stores %f2 in Y; %r0 is the number of the thread.
    """
    return f"""
        .version 8.0
        .target sm_86
        .address_size 64
        .visible .entry body(.param .u64 A, .param .u64 B, .param .u64 Y) {{
            .reg .pred %p<4>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .f32 %f<16>;
            .reg .f64 %d<2>;
            {f".shared .align 16 .b8 tile[{shared}];" if shared else ""}
            mov.u32 %r0, %tid.x;
            mul.wide.u32 %rd3, %r0, 4;
            ld.param.u64 %rd0, [A]; cvta.to.global.u64 %rd0, %rd0; add.u64 %rd0, %rd0, %rd3;
            ld.param.u64 %rd1, [B]; cvta.to.global.u64 %rd1, %rd1; add.u64 %rd1, %rd1, %rd3;
            ld.param.u64 %rd2, [Y]; cvta.to.global.u64 %rd2, %rd2; add.u64 %rd2, %rd2, %rd3;
            ld.global.f32 %f0, [%rd0];
            ld.global.f32 %f1, [%rd1];
            {body}
            st.global.f32 [%rd2], %f2;
            ret;
        }}"""


def judged(body: str, formula: Callable[..., Exact], *, shared: int = 0) -> Comparison:
    """The comparison of a kernel of `text` with a formula of A and B."""
    choice = np.random.default_rng(3)
    a, b = (choice.uniform(0.5, 2, 32).astype(np.float32) for _ in range(2))
    y = np.full(32, np.nan, np.float32)
    return compare(text(body, shared=shared), grid=1, block=32, args=[a, b, y], formula=formula, results="Y")


def other(distance: int) -> Any:
    """The lanes at an exclusive-or distance of each lane."""
    return LANES ^ distance


_TILE = "mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 4, %r1;"
_PACKED = "cvt.rn.f16x2.f32 %r1, %f0, %f1;"
RULES: dict[str, tuple[str, Callable[..., Exact]]] = {
    "fma": ("fma.rn.f32 %f2, %f0, %f1, 0f3FA00000;", lambda A, B: A * B + 1.25),
    "division": ("div.full.f32 %f2, %f0, %f1;", lambda A, B: A / B),
    "exponential": (
        "ex2.approx.f32 %f3, %f0; ex2.approx.f32 %f4, %f1; mul.rn.f32 %f2, %f3, %f4;",
        lambda A, B: (A + B).exp2(),
    ),
    "infinity": (
        "sub.f32 %f3, 0fFF800000, %f0; ex2.approx.f32 %f3, %f3; fma.rn.f32 %f2, %f3, %f1, %f0;",
        lambda A: A,
    ),
    "function": ("sqrt.approx.f32 %f2, %f0;", lambda A: A.applied("sqrt")),
    "greatest": ("max.f32 %f3, %f0, %f1; min.f32 %f4, %f0, %f1; add.f32 %f2, %f3, %f4;", lambda A, B: A + B),
    "absolute": ("neg.f32 %f3, %f0; abs.f32 %f2, %f3;", lambda A: A),
    "choice": ("setp.gt.u32 %p0, %r0, 9; selp.f32 %f2, %f0, %f1, %p0;", lambda A, B: A.where(LANES > 9, B)),
    "guard": (
        "mov.f32 %f2, %f1; setp.gt.u32 %p0, %r0, 9; @%p0 mov.f32 %f2, %f0;",
        lambda A, B: A.where(LANES > 9, B),
    ),
    "butterfly": ("shfl.sync.bfly.b32 %f2, %f0, 6, 31, -1;", lambda A: A[other(6)]),
    "shuffle up": ("shfl.sync.up.b32 %f2, %f0, 1, 0, -1;", lambda A: A[np.maximum(LANES - 1, 0)]),
    "shuffle down": (
        "shfl.sync.down.b32 %f2, %f0, 2, 31, -1;",
        lambda A: A[np.where(LANES < 30, LANES + 2, LANES)],
    ),
    "shuffle of eight": ("shfl.sync.idx.b32 %f2, %f0, 3, 0x181f, -1;", lambda A: A[LANES // 8 * 8 + 3]),
    "packed": (
        f"{_PACKED} mov.b32 {{%rs0, %rs1}}, %r1; cvt.f32.f16 %f3, %rs0; cvt.f32.f16 %f4, %rs1;"
        "sub.f32 %f2, %f3, %f4;",
        lambda A, B: B - A,
    ),
    "packed arithmetic": (
        f"{_PACKED} fma.rn.f16x2 %r2, %r1, %r1, %r1; mov.b32 {{%rs0, %rs1}}, %r2; cvt.f32.f16 %f2, %rs1;",
        lambda A: A * A + A,
    ),
    "bytes chosen": (
        f"{_PACKED} prmt.b32 %r2, %r1, 0, 0x1032; mov.b32 {{%rs0, %rs1}}, %r2; cvt.f32.f16 %f2, %rs0;",
        lambda A: A,
    ),
    "shifts": (
        f"{_PACKED} shr.u32 %r2, %r1, 16; shl.b32 %r3, %r1, 16; or.b32 %r2, %r2, %r3;"
        "mov.b32 {%rs0, %rs1}, %r2; cvt.f32.f16 %f2, %rs0;",
        lambda A: A,
    ),
    "mask": (
        f"{_PACKED} and.b32 %r2, %r1, 0xffff; cvt.u16.u32 %rs0, %r2; cvt.f32.f16 %f2, %rs0;",
        lambda B: B,
    ),
    "bf16 widened": (
        "cvt.rn.bf16x2.f32 %r1, %f0, %f1; and.b32 %r2, %r1, 0xffff0000; shl.b32 %r3, %r1, 16;"
        "mov.b32 %f3, %r2; mov.b32 %f4, %r3; sub.f32 %f2, %f3, %f4;",
        lambda A, B: A - B,
    ),
    "rounding to tf32": (
        "mov.b32 %r1, %f0; add.u32 %r2, %r1, 0x1000; and.b32 %r2, %r2, 0xffffe000;"
        "mov.b32 %f3, %r2; sub.f32 %f2, %f3, %f1;",
        lambda A, B: A - B,
    ),
    "rounded constants": (
        "cvt.rn.f32.u32 %f3, 3; rcp.rn.f32 %f3, %f3; mul.f32 %f2, %f0, %f3;",
        lambda A: A / 3,
    ),
    "the upper half of 64 bits": ("mov.b64 %rd4, {%f0, %f1}; mov.b64 {_, %f2}, %rd4;", lambda B: B),
    "halves of wide registers": (
        f"{_TILE} {_PACKED} shr.u32 %r3, %r1, 16; st.shared.v2.b16 [%r2], {{%r1, %r3}};"
        "ld.shared.b32 %r4, [%r2]; mov.b32 {%rs0, %rs1}, %r4; cvt.f32.f16 %f2, %rs1;",
        lambda A: A,
    ),
    "bytes beside a number": (
        "mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 8, %r1; mov.b32 %r3, 0; st.shared.f32 [%r2+4], %f0;"
        "st.shared.v4.u8 [%r2], {%r3, %r3, %r3, %r3}; ld.shared.f32 %f2, [%r2+4];",
        lambda A: A,
    ),
    "shared memory": (
        f"{_TILE} st.shared.f32 [%r2], %f0; bar.warp.sync -1; xor.b32 %r3, %r2, 12;"
        "ld.shared.f32 %f2, [%r3];",
        lambda A: A[other(3)],
    ),
    "a copy of half of the bytes": (
        "mov.u32 %r1, tile; and.b32 %r3, %r0, 28; mad.lo.u32 %r2, %r3, 4, %r1; and.b32 %r4, %r0, 3;"
        "mul.wide.u32 %rd4, %r4, 4; sub.u64 %rd4, %rd0, %rd4; setp.eq.u32 %p0, %r4, 0;"
        "@%p0 cp.async.ca.shared.global [%r2], [%rd4], 16, 8; cp.async.wait_all; bar.warp.sync -1;"
        "mad.lo.u32 %r5, %r0, 4, %r1; ld.shared.f32 %f3, [%r5]; add.f32 %f2, %f3, %f1;",
        lambda A, B: A * (LANES % 4 < 2) + B,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_an_instruction_computes_its_formula_and_nothing_else(name: str) -> None:
    body, formula = RULES[name]
    shared = 256 * ("tile" in body)
    right = judged(body, formula, shared=shared)
    assert str(right) == "body: Y: 32 of 32 elements equal the formula"
    assert right.holds
    names = inspect.signature(formula).parameters

    def another(A: Exact, B: Exact) -> Exact:
        arrays = {"A": A, "B": B}
        return formula(**{name: arrays[name] for name in names}) + A / 4096

    wrong = judged(body, another, shared=shared)
    assert wrong.refuted, str(wrong)
    assert len(wrong.results["Y"].wrong) == 32


_NO_FORMULA = {
    "f16 read as bf16": "cvt.rn.f16.f32 %rs0, %f0; cvt.f32.bf16 %f2, %rs0;",
    "half of f32 read as f16": "mov.b32 {%rs0, %rs1}, %f0; cvt.f32.f16 %f2, %rs0;",
    "f16 widened as bf16": f"{_PACKED} and.b32 %r2, %r1, 0xffff0000; mov.b32 %f2, %r2;",
    "bf16 above other bits": (
        "cvt.rn.bf16.f32 %rs1, %f0; mov.b16 %rs0, 0x7777; mov.b32 %r1, {%rs0, %rs1}; mov.b32 %f2, %r1;"
    ),
    "bf16 multiplied as f16": (
        "cvt.rn.bf16x2.f32 %r1, %f0, %f0; mov.f32 %f7, 0f00000000;"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r1, %r1}, {%r1},"
        "{%f7, %f7, %f7, %f7};"
    ),
    "rounding without a mask": "mov.b32 %r1, %f0; add.u32 %r1, %r1, 0x8000; mov.b32 %f2, %r1;",
    "one byte": f"{_PACKED} cvt.u8.u32 %rs0, %r1; cvt.f32.f16 %f2, %rs0;",
    "bytes of memory": (
        f"{_TILE} st.shared.f32 [%r2], %f0; ld.shared.v4.u8 {{%r3, %r4, %r5, %r6}}, [%r2]; mov.b32 %f2, %r5;"
    ),
    "choice of bytes by a number": (
        "mov.b32 %r1, %f0; prmt.b32 %r2, 0x3f800000, 0x40000000, %r1; mov.b32 %f2, %r2;"
    ),
    "shift by a number": "mov.b32 %r1, %f0; shl.b32 %r2, 1, %r1; mov.b32 %f2, %r2;",
    "sign beside the number": (
        f"{_TILE} st.shared.f32 [%r2], %f0; ld.shared.s16 %r3, [%r2+2]; mov.b32 %f2, %r3;"
    ),
    "sign of both": "neg.f32 %f3, %f1; max.xorsign.abs.f32 %f2, %f0, %f3;",
    "whole number": "cvt.rni.f32.f32 %f2, %f0;",
    "f64": "cvt.f64.f32 %d0, %f0; add.f64 %d0, %d0, %d0; cvt.rn.f32.f64 %f2, %d0;",
    "numbers of other lanes": (
        "mov.u32 %r1, 0; setp.lt.u32 %p0, %r0, 4; @%p0 mov.b32 %r1, %f0;"
        "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1; mov.b32 %f2, %r2;"
    ),
    "greatest with NaN": "mov.f32 %f3, 0f7FC00000; max.f32 %f2, %f0, %f3;",
}  # fmt: skip


@pytest.mark.parametrize("name", _NO_FORMULA)
def test_bits_that_are_read_as_something_else_are_unknown(name: str) -> None:
    body = _NO_FORMULA[name]
    comparison = judged(body, lambda A: A, shared=128 * ("tile" in body))
    assert comparison.results["Y"].unknown == 32, str(comparison)


def test_an_element_that_is_not_a_number_is_wrong() -> None:
    comparison = judged("mov.f32 %f2, 0f7FC00000;", lambda A: A)
    assert len(comparison.results["Y"].wrong) == 32


def test_what_is_not_followed_is_unknown_and_named() -> None:
    body = "mov.b32 %r1, %f0; mul.lo.u32 %r1, %r1, 3; mov.b32 %f3, %r1; add.f32 %f2, %f3, %f1;"
    comparison = judged(body, lambda A, B: A + B)
    assert not comparison.holds
    assert not comparison.refuted
    assert str(comparison) == (
        "body: Y: 0 of 32 elements equal the formula\n"
        "  32 are unknown\n"
        "    32 because of mul.lo.u32 %r1, %r1, 3;"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"results": "Z"}, "results: body has no parameter 'Z'"),
        ({"formula": lambda X: X}, "formula: body has no parameter 'X'"),
        ({"formula": lambda A: A[:3]}, "formula: Y has the shape (32,), and the formula's is (3,)"),
        ({"entry": "bodies"}, "entry: the module has the kernels body; got 'bodies'"),
        ({"args": []}, "args: body has 3 parameters, got 0 arguments"),
        ({"results": []}, "results: give the name of at least one array that the kernel stores"),
        ({"formula": lambda A: {"A": A}}, "formula: returns nothing for 'Y', only A"),
        (
            {"args": [np.ones(32, dtype) for dtype in ("f4", "f4", "i4")]},
            "results: Y must be an array of float16, bfloat16, float32, got int32",
        ),
        (
            {"ptx_or_module": text("call f;").replace(".visible", ".func f() { ret; } .visible")},
            "numbers are not followed through call: inline the function",
        ),
        (
            {"ptx_or_module": text("{.local .b32 x; st.local.f32 [x], %f0;}")},
            "numbers are not followed through st.local.f32: its state space is local, and those followed are "
            "global and shared",
        ),
        (
            {"ptx_or_module": text("atom.global.add.f32 %f2, [%rd2], %f0;")},
            "numbers are not followed through atom.global.add.f32",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    arrays = [np.ones(32, np.float32) for _ in range(3)]
    how: dict[str, Any] = {"ptx_or_module": text("mov.f32 %f2, %f0;"), "formula": lambda A: A, "results": "Y"}
    how |= {"args": arrays} | changes
    program = how.pop("ptx_or_module")
    with pytest.raises(LaunchError, match=f"^{re.escape(message)}$"):
        compare(program, grid=1, block=32, **how)


# --------------------------------------------------------------------------------- attention


@cache
def subject(name: str) -> KernelUnderTest:
    """A kernel of the mutation campaign."""
    return subjects()[name]


def attention(of: KernelUnderTest) -> Callable[..., Exact]:
    """Attention in real arithmetic, as a kernel of the campaign has its parameters."""

    def formula(Q: Exact, K: Exact, V: Exact, softmax_scale: float) -> Exact:
        group = Q.shape[1] // K.shape[1]
        K, V = (of_heads.each(lambda lanes: np.repeat(lanes, group, 1)) for of_heads in (K, V))
        weights = (Q @ K.T * np.float32(softmax_scale) * LOG2_E).exp2()
        if re.search("top_left|bottom_right", of.entry):
            rows, keys = Q.shape[2], K.shape[2]
            weights = weights * np.tri(rows, keys, (keys - rows) * ("bottom_right" in of.entry))
        return weights @ V / weights.sum(-1)[..., None]

    return formula


def beside_attention(of: KernelUnderTest, problem: int = 0, module: Any = None) -> Comparison:
    """What a kernel of the campaign, or a mutant of it, has in O after a problem, beside attention."""
    how = of.prepare(of.problems[problem]).how
    return compare(module or of.module, of.entry, **how, formula=attention(of), results="O")


@pytest.mark.parametrize(
    "name",
    [
        "f16-sm_80-causal-narrow",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("f32-sm_80", "f16-sm_80", "f16-sm_75-causal", "bf16-sm_80-causal-stages")
        ),
    ],
)
def test_a_kernel_is_attention_in_real_arithmetic(name: str) -> None:
    comparison = beside_attention(subject(name))
    assert comparison.holds, str(comparison)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["f32-sm_80", "f16-sm_80", "f16-sm_80-causal-narrow"])
def test_a_kernel_is_attention_for_lengths_of_all_rests(name: str) -> None:
    """The campaign's problems end at every guard of unrolled loops, and have one tile of keys and several."""
    of = subject(name)
    for number, problem in enumerate(of.problems):
        if getattr(problem, "scores", None) or not problem.seq_k or problem.seq_q > problem.seq_k:
            continue
        comparison = beside_attention(of, number)
        assert comparison.holds, f"{problem}: {comparison}"


def mutant(of: KernelUnderTest, kind: str, step: str, what: str) -> Any:
    """The first mutant of a kind in a step of the algorithm that makes a change."""
    alike = (m for m in mutants(of.module, of.entry) if m.kind == kind and step in m.step)
    return next(m.module for m in alike if what in m.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step", "what"),
    [("loop-bound", "O += P V", "never taken"), ("warp", "O / sum", "of double distance")],
)
def test_a_hostile_mutant_is_refuted(kind: str, step: str, what: str) -> None:
    of = subject("f16-sm_80-causal-narrow")
    assert beside_attention(of, module=mutant(of, kind, step, what)).refuted
