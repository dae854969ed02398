"""Random programs that branch, on both execution paths and, where every bit is defined, on a plain
machine that runs one thread at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from interpreter import plain
from interpreter.both_paths import assert_same_bits
from random_programs import EACH, FILES, PREDICATES, STARTS, Program, programs

from ptxgen.interpreter import run
from ptxgen.parse import parse

Array = np.ndarray[Any, np.dtype[Any]]

# A program is thousands of choices.
FIXED = settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY = settings(FIXED, max_examples=3000)


def results(program: Program, **how: Any) -> list[Array]:
    arrays = program.inputs()
    run(program.text, grid=program.grid, block=program.block, args=arrays, **how)
    return arrays


def both_paths_agree(program: Program) -> None:
    for got, want in zip(results(program), results(program, stepwise=True), strict=True):
        assert_same_bits(got, want)


def plain_machine_agrees(program: Program) -> None:
    # The programs have no races and read nothing that they have not written.
    got = results(program, sanitize=True)
    buffers = [bytearray(x.tobytes()) for x in program.inputs()]
    plain.Machine(parse(program.text), program.grid, program.block, buffers).run()
    wanted = [np.frombuffer(b, x.dtype).reshape(x.shape) for b, x in zip(buffers, got, strict=True)]
    np.testing.assert_array_equal(got[2], wanted[2], "cells")
    for name, held, start, dtype in columns():
        mine, other = (x[1][:, start : start + dtype.itemsize].copy().view(dtype) for x in (got, wanted))
        if held in ("f32", "f64", "half"):
            nan = np.isnan(mine.view(f"f{dtype.itemsize}")) & np.isnan(other.view(f"f{dtype.itemsize}"))
            mine, other = np.where(nan, 0, mine), np.where(nan, 0, other)
        np.testing.assert_array_equal(mine, other, name)


def columns() -> list[tuple[str, str, int, np.dtype[Any]]]:
    """Where `out` has which register, as which type."""
    result = [
        (f"{prefix}{n}", held, STARTS[held] + n * nbytes, np.dtype(f"u{nbytes}"))
        for held, (prefix, nbytes) in FILES.items()
        for n in range(EACH)
    ]
    return [*result, *((f"%p{n}", "pred", PREDICATES + n, np.dtype("u1")) for n in range(EACH))]


@pytest.mark.slow
@FIXED
@given(programs(exact=False))
def test_both_paths_give_the_same_bits_for_random_programs(program: Program) -> None:
    both_paths_agree(program)


@pytest.mark.slow
@FIXED
@given(programs(exact=True))
def test_random_programs_give_what_a_plain_machine_gives(program: Program) -> None:
    plain_machine_agrees(program)


@pytest.mark.nightly
@MANY
@given(programs(exact=False))
def test_both_paths_give_the_same_bits_for_many_programs(program: Program) -> None:
    both_paths_agree(program)


@pytest.mark.nightly
@MANY
@given(programs(exact=True))
def test_many_programs_give_what_a_plain_machine_gives(program: Program) -> None:
    plain_machine_agrees(program)
