"""Registers of 128 bits: packed, moved, in memory, swapped atomically, and with undefined halves."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from ptxgen.check.verify import verify
from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

EVERY_WAY: Final = ({}, {"stepwise": True}, {"sanitize": True}, {"schedule": "pct:1"})


def kernel(body: str) -> str:
    """Thread t has the addresses of element t of x, %rd4, of out, %rd5, and of shared memory, %r2."""
    return f""".version 8.3
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out)
{{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<16>; .reg .b128 %rq<8>;
.shared .align 16 .b8 s[512];
ld.param.u64 %rd1, [x];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 16;
add.u64 %rd4, %rd1, %rd3;
add.u64 %rd5, %rd2, %rd3;
mov.u32 %r2, s;
shl.b32 %r3, %r1, 4;
add.u32 %r2, %r2, %r3;
setp.lt.u32 %p1, %r1, 16;
{body}
ret;
}}
"""


MOVES: Final = kernel(
    """
ld.global.b128 %rq1, [%rd4];
st.shared.b128 [%r2], %rq1;
@%p1 mov.b128 {%rd6, %rd7}, %rq1;
@!%p1 mov.b128 {%rd7, %rd6}, %rq1;
mov.b128 %rq2, {%rd6, %rd7};
st.relaxed.gpu.global.b128 [%rd5], %rq2;
@%p1 bra $end;
ld.shared.b128 %rq3, [%r2];
mov.b128 %rq4, %rq3;
atom.global.exch.b128 %rq5, [%rd5], %rq4;
$end:"""
)


def numbers(seed: int = 0) -> np.ndarray:
    """Random bits, among them numbers that as floating point would be zeros, infinities and NaN."""
    some = np.random.default_rng(seed).integers(0, 2**64, (32, 2), np.uint64)
    some[3] = 1 << 63, 0
    some[4] = 0x7FF0000000000001, 0xFFF8DEAD00000000
    some[20] = 0x7FF0000000000001, 1 << 63
    return some


@pytest.mark.parametrize("how", EVERY_WAY)
def test_bits_are_moved_unchanged(how: dict[str, Any]) -> None:
    x, out = numbers(), np.zeros((32, 2), np.uint64)
    run(MOVES, grid=1, block=32, args=[x, out], **how)
    np.testing.assert_array_equal(out, x)


SWAP: Final = kernel(
    """
ld.global.b128 %rq1, [%rd4];
ld.global.b128 %rq2, [%rd4+512];
atom.relaxed.gpu.global.cas.b128 %rq3, [%rd5], %rq1, %rq2;
st.global.b128 [%rd4], %rq3;"""
)


@pytest.mark.parametrize("how", EVERY_WAY)
def test_a_value_is_exchanged_if_all_its_bits_are_equal(how: dict[str, Any]) -> None:
    x = np.concatenate([numbers(1), numbers(2)])
    before = x[:32].copy()
    before[5, 0] ^= np.uint64(1 << 63)
    before[6, 1] ^= np.uint64(1)
    x[7], before[7] = (0, 0), (1 << 63, 0)  # -0 and +0 would be equal
    wanted = np.where(np.isin(np.arange(32), (5, 6, 7))[:, None], before, x[32:])
    out = before.copy()
    run(SWAP, grid=1, block=32, args=[x, out], **how)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(x[:32], before)


HALF: Final = kernel(
    """
mov.u64 %rd6, 5;
st.shared.b64 [%r2], %rd6;
ld.shared.b128 %rq1, [%r2];
mov.b128 {%rd7, %rd8}, %rq1;
st.global.b64 [%rd5], %rd7;"""
)


def test_the_halves_are_undefined_one_by_one() -> None:
    x, out = numbers(), np.zeros((32, 2), np.uint64)
    run(HALF, grid=1, block=32, args=[x, out], sanitize=True)
    assert (out == [5, 0]).all()
    upper = HALF.replace("[%rd5], %rd7", "[%rd5], %rd8")
    with pytest.raises(TrapError) as caught:
        run(upper, grid=1, block=32, args=[x, out], sanitize=True)
    assert "depends on shared address 0x8 (s), which nothing has written" in str(caught.value)


def test_a_register_that_nothing_has_written_is_undefined() -> None:
    text = MOVES.replace("ld.global.b128 %rq1, [%rd4];\n", "")
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=[numbers(), np.zeros((32, 2), np.uint64)], sanitize=True)
    assert "depends on %rq1, which it has not written" in str(caught.value)


@pytest.mark.parametrize("text", [MOVES, SWAP, HALF])
def test_the_texts_are_verified_and_printed(text: str) -> None:
    module = parse(text)
    assert verify(module) == ()
    assert parse(render(module)) == module


WRONG: Final = (("mov.b128 %rq1, %rd1;", "operand a of mov must be b128, got %rd1 of class b64"),)


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_neither_numbers_nor_narrow_registers_have_128_bits(line: str, message: str) -> None:
    (problem,) = verify(parse(kernel(line)))
    assert problem.message.startswith(message)


@pytest.mark.ptxas
@pytest.mark.parametrize("text", [MOVES, SWAP, HALF])
def test_the_assembler_takes_the_texts(text: str, assembler: Assembler) -> None:
    assembler.assemble(text, "sm_90", opt_level=0)
