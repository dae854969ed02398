"""Proofs of kernels that divide by constants, which the DSL does by products."""

from __future__ import annotations

import pytest

import ptxgen as px
from ptxgen import Pointer, s32, u32
from ptxgen.check.prove import prove
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.dsl.division import unsigned_reciprocal

DIVISORS = [3, 7, 8, 10, 100]
MOST = 2**31 - 1  # CTAs of a grid


def split(k, X: Pointer[u32], *, by: int, signed: bool):
    block = k.signed(k.block_id()) if signed else k.block_id()
    X.row(block // by, by)[block % by] = 1


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("by", DIVISORS)
def test_a_number_split_into_quotient_and_remainder_stays_in_a_matrix(by, signed):
    kernel, grid = px.kernel(threads=1)(split), {"grid": (1, MOST)}
    assert kernel.prove(X=(f"(grid + {by - 1}) // {by}", by), bounds=grid, by=by, signed=signed).complete


@pytest.mark.parametrize("dims", [("grid // 7", 7), ("(grid + 6) // 7", 6), ("(grid + 6) // 7 - 1", 7)])
def test_a_matrix_that_is_too_small_is_not_enough(dims):
    kernel = px.kernel(threads=1)(split)
    (access,) = kernel.prove(X=dims, bounds={"grid": (1, 40)}, by=7, signed=False).global_memory.accesses
    assert access.verdict != "proved"


def shared(k, X: Pointer[s32], *, by: int):
    tile = k.shared("tile", (1, -(-256 // by)), s32)
    tile[0, k.thread_id() // by] = 1
    k.barrier()
    X[0] = tile[0, k.thread_id() % by % 2]


@pytest.mark.parametrize("by", DIVISORS)
def test_shared_memory(by):
    assert px.kernel(threads=256)(shared).prove(X=(1,), by=by).shared.complete


MODULE = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 X)
{{
	.reg .b32 %r<4>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd0, [X];
	cvta.to.global.u64 %rd1, %rd0;
	mov.u32 %r0, %ctaid.x;
	{product};
	shr.u64 %rd3, %rd2, {shift};
	shl.b64 %rd4, %rd3, 2;
	add.u64 %rd5, %rd1, %rd4;
	mov.u32 %r1, 0;
	st.global.u32 [%rd5], %r1;
	ret;
}}
"""


def verdict(product: str, shift: int, blocks: int, by: int) -> str:
    """The verdict on a store to X[quotient], where X has an element for each quotient by `by`."""
    array = GlobalArray("X", (Axis(f"(grid + {by - 1}) // {by}", 4),), 4, 4)
    contract = GlobalContract((array,), (), {"grid": (1, blocks)}, ("grid", 1, 1))
    result = prove(MODULE.format(product=product, shift=shift), block=1, contract=contract).global_memory
    (access,) = result.accesses
    return access.verdict


@pytest.mark.parametrize("by", DIVISORS)
def test_a_product_by_a_reciprocal_is_a_quotient(by):
    if by & (by - 1):
        factor, addend, shift = unsigned_reciprocal(by)
    else:
        factor, addend, shift = 1, 0, by.bit_length() - 1
    word = f"mad.wide.u32 %rd2, %r0, {factor}, {addend}"
    assert verdict(word, shift, MOST, by) == "proved"
    assert verdict(word, shift, 300, by + 1) != "proved"


def test_a_reciprocal_that_is_too_short_is_one_only_for_small_numbers():
    # 37 * 7 is 3 more than 2**8: exact while 3 x < 2**8, and 37 * 90 / 2**8 is 13
    assert verdict("mad.wide.u32 %rd2, %r0, 37, 0", 8, 86, 7) == "proved"
    assert verdict("mad.wide.u32 %rd2, %r0, 37, 0", 8, 91, 7) != "proved"
    # 73 * 7 is 1 less than 2**9: exact while x + 1 <= 2**9
    assert verdict("mad.wide.u32 %rd2, %r0, 73, 73", 9, 512, 7) == "proved"
    # With a power of two in place of a reciprocal rounded down, the sum is too large at once.
    assert verdict("mad.wide.u32 %rd2, %r0, 64, 64", 9, 8, 8) != "proved"


def test_the_quotient_of_a_larger_number_is_another_one():
    factor, addend, shift = unsigned_reciprocal(7)
    assert addend == factor  # rounded down
    assert verdict(f"mad.wide.u32 %rd2, %r0, {factor}, {factor}", shift, 100, 7) == "proved"
    assert verdict(f"mad.wide.u32 %rd2, %r0, {factor}, {7 * factor}", shift, 100, 7) != "proved"


def by_threads(k, X: Pointer[u32], m: u32, *, least: int):
    X[m // (k.thread_id() + least)] = 1


def remains_of_threads(k, X: Pointer[u32], m: u32):
    t = k.thread_id()
    X[m - 3 * (m // (t + 8)) - (t + 8) * (m // (t + 8))] = 1


@pytest.mark.parametrize(("least", "is_proved"), [(8, True), (1, False)])
def test_a_number_may_be_divided_by_another_one_in_each_thread(least, is_proved):
    kernel = px.kernel(threads=32)(by_threads)
    (access,) = kernel.prove(X=("m",), grid=1, least=least).global_memory.accesses
    assert (access.verdict == "proved") is is_proved  # m // 1 is m


def test_quotients_by_another_number_in_each_thread_and_their_multiples_are_unknown_at_worst():
    result = px.kernel(threads=32)(remains_of_threads).prove(X=("m",), grid=1)
    assert [access.verdict for access in result.global_memory.accesses] != ["proved"]
