"""Numbers of any class are read as Python's own."""

from __future__ import annotations

import decimal
import fractions
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.arguments import in_numbers, number

REAL: dict[str, tuple[Any, int | float]] = {
    "int": (3, 3),
    "float": (0.25, 0.25),
    "fraction": (fractions.Fraction(1, 4), 0.25),
    "float32": (np.float32(0.1), float(np.float32(0.1))),
    "float16": (np.float16(0.25), 0.25),
    "int64": (np.int64(-2), -2),
    "array": (np.array(0.5, np.float32), 0.5),
    "bfloat16": (ml_dtypes.bfloat16(0.5), 0.5),
}
NONE = [True, np.True_, "1", b"1", None, 1j, np.complex64(1), [1], np.ones(1), decimal.Decimal("1"), object()]


@pytest.mark.parametrize("name", REAL)
def test_a_real_number_of_any_class_is_read(name: str) -> None:
    arguments, wanted = REAL[name]
    result = number(arguments)
    assert result == wanted
    assert isinstance(result, type(wanted))


@pytest.mark.parametrize("given", NONE)
def test_what_is_no_real_number_is_none(given: Any) -> None:
    assert number(given) is None


@pytest.mark.parametrize("given", [np.array([3, -1]), [np.int32(3), -1], (3, np.array(-1))])
def test_a_row_of_numbers_is_one_of_pythons_own(given: Any) -> None:
    result = in_numbers(given)
    assert result == ([3, -1] if isinstance(given, list) else (3, -1))
    assert [type(one) for one in result] == [int, int]


@pytest.mark.parametrize("given", [None, True, "ab", np.zeros((2, 2)), object()])
def test_what_is_no_row_of_numbers_stays(given: Any) -> None:
    assert in_numbers(given) is given


def test_what_is_no_number_in_a_row_stays_in_it() -> None:
    assert in_numbers([None, np.int64(2), "x"]) == [None, 2, "x"]
