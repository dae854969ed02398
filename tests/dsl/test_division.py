"""`//` and `%` by numbers of Python: products by reciprocals."""

from __future__ import annotations

import random

import numpy as np
import pytest
from dsl.kernels import builder, instructions

from ptxgen.dsl.division import signed_reciprocal, unsigned_reciprocal
from ptxgen.interpreter import run
from ptxgen.types import TYPES, s32, u32, u64

DIVISORS = [
    *(1, 2, 3, 5, 6, 7, 8, 10, 11, 14, 25, 60, 64, 100, 125, 127, 128, 641, 1000, 2**16 + 1, 2**30),
    2**31 - 1,
]
LARGE = [2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]


def edges(bits: int, by: int) -> list[int]:
    """Numbers at which a quotient that is a little off is wrong."""
    top = (1 << bits) - 1
    near = [
        n * by + off for n in (0, 1, 2, 3, top // by // 2, top // by - 1, top // by) for off in (-1, 0, 1)
    ]
    return sorted({n for n in (*near, 0, 1, top - 1, top) if 0 <= n <= top})


def results(dtype: str, by: int, numbers: list[int]):
    """The quotients and remainders that a kernel computes."""
    type = TYPES[dtype]
    k = builder()
    X, Q, R, n = k.pointer("X", type), k.pointer("Q", type), k.pointer("R", type), k.param("n", u32)
    with k.strided(n) as i:
        Q[i], R[i] = X[i] // by, X[i] % by
    assert not {"div", "rem"} & {instr.opcode.partition(".")[0] for instr in instructions(k)}
    x = np.array(numbers, type.dtype)
    q, r = np.zeros_like(x), np.zeros_like(x)
    run(k.build(), grid=1, block=32, args=[x, q, r, len(x)])
    return q.tolist(), r.tolist()


@pytest.mark.parametrize("by", DIVISORS + LARGE)
def test_unsigned_numbers(by):
    numbers = edges(32, by)
    q, r = results("u32", by, numbers)
    assert q == [n // by for n in numbers]
    assert r == [n % by for n in numbers]


@pytest.mark.parametrize("by", DIVISORS)
def test_signed_numbers_are_rounded_towards_zero(by):
    positive = edges(31, by)
    numbers = [*positive, *(-n for n in positive), -(2**31)]
    q, r = results("s32", by, numbers)
    assert q == [abs(n) // by * (1 if n >= 0 else -1) for n in numbers]
    assert r == [abs(n) % by * (1 if n >= 0 else -1) for n in numbers]


@pytest.mark.parametrize("by", [1, 2, 2**40, 2**63])
def test_shifts_of_64_bits(by):
    numbers = edges(64, by)
    assert results("u64", by, numbers) == ([n // by for n in numbers], [n % by for n in numbers])


def divisors(bits: int):
    """All small divisors, all near powers of two, and some others."""
    rng = random.Random(0)
    near = [(1 << n) + off for n in range(2, bits) for off in (-1, 1, 3)]
    result = [*range(3, 4000), *near, *(rng.randrange(3, 1 << bits) for _ in range(2000))]
    return [by for by in result if by & (by - 1) and by < 1 << bits]


def test_reciprocals_of_unsigned_numbers_are_exact_by_their_theorems():
    for by in divisors(32):
        factor, addend, shift = unsigned_reciprocal(by)
        assert 0 < factor < 1 << 32
        for n in edges(32, by):
            assert (n * factor + addend) >> shift == n // by, (n, by)


def test_reciprocals_of_signed_numbers_are_exact_by_their_theorems():
    for by in divisors(31):
        factor, _, shift = signed_reciprocal(by)
        assert factor << 31 <= 1 << 63
        for n in (*edges(31, by), 1 << 31):
            assert n * factor >> shift == n // by, (n, by)
            assert not n or -n * factor >> shift == -(n // by) - 1, (n, by)


def opcodes(k):
    return [instr.opcode for instr in instructions(k)[:-1]]


def test_numbers_that_have_no_product_are_divided():
    k = builder()
    n, m, wide = k.param("n", u32), k.param("m", s32), k.param("wide", u64)
    before = len(opcodes(k))
    for a, by in ((n, n), (m, -3), (wide, 10), (n, 0)):
        a // by
        a % by
    assert opcodes(k)[before:] == [
        "div.u32",
        "rem.u32",
        "div.s32",
        "rem.s32",
        "div.u64",
        "rem.u64",
        "div.u32",
        "rem.u32",
    ]


def test_a_quotient_by_one_is_the_number_that_a_variable_has_now():
    k = builder()
    P = k.pointer("P", u32)
    n = k.var(u32, 7)
    kept = n // 1
    n.set(8)
    P[0] = kept
    p = np.zeros(1, np.uint32)
    run(k.build(), grid=1, block=1, args=[p])
    assert p[0] == 7
