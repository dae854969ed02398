"""The bound of rounding errors counts what an error may do to whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flash.mods import as_integer, floor, round, where
from flash.mods.record import traced
from flash.mods.rounding import rounding
from flash.mods.trace import AuxArray
from flash.operands.dtypes import F32

UNIT = 2.0**24  # an error of 1, in units of 2**-24


def bounds(function: Callable[..., Any], *scores: float) -> list[float]:
    trace = traced("score_mod", function, [AuxArray("table", F32, 1)])
    inputs = {name: np.array(3) for name in ("batch", "head", "query", "key")}
    arguments = {**inputs, "score": np.array(scores)}
    return [*np.broadcast_to(rounding(trace, arguments, {"table": np.ones(4, np.float32)}), len(scores))]


@pytest.mark.parametrize(
    ("function", "near", "far"),
    [(lambda s, b, h, q, k: floor(s * 3), 2.0, 2.1), (lambda s, b, h, q, k: round(s * 3), 0.5, 0.6)],
)
def test_an_error_near_a_step_counts_with_the_step(function: Any, near: float, far: float) -> None:
    at_step, between = bounds(function, near, far)
    assert UNIT <= at_step < UNIT + 16
    assert between < 16


@pytest.mark.parametrize(
    "function",
    [
        lambda s, b, h, q, k: as_integer(s * 3) * 2.0,
        lambda s, b, h, q, k, table: table[as_integer(s * 3) + q] + 1.0,
        lambda s, b, h, q, k: where(s * 3 > 6, q, k) * 0.5,
    ],
)
def test_nothing_is_known_of_an_integer_that_an_error_may_turn(function: Any) -> None:
    at_step, between = bounds(function, 2.0, 2.1)
    assert at_step == np.inf
    assert between < 16


def test_an_exact_operand_turns_nothing() -> None:
    assert bounds(lambda s, b, h, q, k: floor(s) + as_integer(s), 2.0, 2.5) == [4.0, 4.0]
