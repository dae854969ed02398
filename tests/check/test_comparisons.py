"""Comparisons of unsigned numbers that come out the same for every number are pointed out, in the text of a
kernel and while one is built.
"""

from __future__ import annotations

import warnings

import pytest

import ptxgen as px
from ptxgen import Pointer, s32, u32
from ptxgen.check.comparisons import settled_comparisons
from ptxgen.errors import KernelWarning
from ptxgen.parse import parse


def told(*lines: str) -> list[str]:
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n)\n{\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;\n"
        "ld.param.u32 %r1, [n];\n" + "\n".join(lines) + "\nret;\n}\n"
    )
    return [problem.message for problem in settled_comparisons(parse(text).kernels[0])]


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ("ge.u32 %p1, %r1, 0", "%r1 >= 0 holds for every"),
        ("hs.u32 %p1, %r1, 0", "%r1 >= 0 holds for every"),
        ("lt.u32 %p1, %r1, 0", "%r1 < 0 holds for no"),
        ("lo.u64 %p1, %rd1, 0", "%rd1 < 0 holds for no"),
        ("le.u32 %p1, 0, %r1", "0 <= %r1 holds for every"),
        ("gt.u16 %p1, 0, %h1", "0 > %h1 holds for no"),
        ("gt.u32 %p1, %r1, -1", "%r1 > -1 holds for no"),
        ("ls.u32 %p1, %r1, 4294967295", "%r1 <= 4294967295 holds for every"),
        ("lt.u32 %p1, -1, %r1", "-1 < %r1 holds for no"),
        ("ge.and.u32 %p1, %r1, 0, %p2", "%r1 >= 0 holds for every"),
    ],
)
def test_a_comparison_that_comes_out_the_same_is_pointed_out(comparison: str, holds: str) -> None:
    assert told(f"setp.{comparison};") == [f"{holds} unsigned number"]


@pytest.mark.parametrize(
    "comparison",
    [
        *("ge.s32 %p1, %r1, 0", "gt.u32 %p1, %r1, 0", "le.u32 %p1, %r1, 0", "lt.u32 %p1, 0, %r1"),
        *("ge.u32 %p1, 0, %r1", "ge.u32 %p1, %r1, 1", "eq.u32 %p1, %r1, 0", "lt.u32 %p1, %r1, -1"),
        *("ge.u64 %p1, %rd1, 4294967295", "ge.u32 %p1, %r1, %r2"),
    ],
)
def test_a_comparison_that_tells_numbers_apart_is_not(comparison: str) -> None:
    assert told(f"setp.{comparison};") == []


@pytest.mark.parametrize("subtraction", ["sub.u32 %r2, %r1, 1;", "add.s32 %r2, %r1, -1;"])
def test_a_difference_that_wraps_around_is_named(subtraction: str) -> None:
    assert told(subtraction, "setp.ge.u32 %p1, %r2, 0;") == [
        f"%r2 >= 0 holds for every unsigned number; {subtraction} wraps around where the result would be "
        "negative: compare before it, or compare signed numbers"
    ]


MESSAGE = (
    "a difference of u32 is never less than 0: it wraps around instead; compare before the subtraction, such "
    "as i >= 1 for i - 1 >= 0, or use .as_(s32)"
)


def build(condition):
    @px.kernel(threads=32)
    def kernel(k, X: Pointer[u32], n: u32):
        with k.when(condition(k, n)):
            X[0] = 1

    kernel.build()


@pytest.mark.parametrize(
    "condition", [lambda _, n: n - 1 >= 0, lambda k, n: k.thread_id() - n < 0, lambda _, n: n + -1 >= 0]
)
def test_a_difference_is_compared_with_0_and_a_build_warns_at_its_line(condition) -> None:
    with pytest.warns(KernelWarning) as caught:
        build(condition)
    (warning,) = caught
    assert str(warning.message) == MESSAGE
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "condition",
    [
        lambda _, n: n >= 0,  # a bound that a parameter of Python gives
        lambda _, n: n - 1 > 0,
        lambda _, n: (n - 1).as_(s32) >= 0,
        lambda _, n: n - 1 >= 1,
    ],
)
def test_other_comparisons_build_without_a_warning(condition) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(condition)
