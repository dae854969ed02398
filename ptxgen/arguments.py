"""Reads integers, extents and choices that a user passes as arguments.

These functions raise nothing but MemoryError, whatever object is passed: they report a misfit by
their result, and the calling function raises the error that names the argument.
"""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

_REAL: Final = re.compile(r"(torch\.)?b?(float|u?int)\d")  # the names of dtypes of real numbers
_MOST_EXTENT: Final = (1 << 63) - 1  # no array is larger


def integer(value: object, least: int, most: int | None = None) -> int | None:
    """`value` as an int if it is an integer from `least` to `most`; None otherwise.

    Integers of any class are accepted, numpy's included; bools are not.
    """
    if value.__class__ is not int and isinstance(value, bool | np.bool):
        return None
    if isinstance(value, int):  # or a symbolic int of torch.compile, which `operator.index` would fix
        return value if least <= value and (most is None or value <= most) else None
    try:
        if "bool" in str(getattr(value, "dtype", "")):
            return None
        number = operator.index(value)  # type: ignore[arg-type]  # or it raises
    except MemoryError:  # does not tell whether the value is an integer
        raise
    except Exception:  # any error from the value's own __index__: the value is no integer
        return None
    return number if least <= number and (most is None or number <= most) else None


def number(value: object) -> int | float | None:
    """`value` as an int or a float if it is a real number; None otherwise.

    Numbers of any class are accepted: numpy's, fractions, and arrays and tensors without axes (for one on
    a GPU the call waits); bools are not.
    """
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else value
    try:
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            return float(value) if isinstance(value, numbers.Real) else None
        if not _REAL.match(str(dtype)) or getattr(value, "ndim", 0) != 0:
            return None
        convert: Any = float if "float" in str(dtype) else int
        scalar: int | float = convert(value)
    except MemoryError:  # does not tell whether the value is a number
        raise
    except Exception:  # any error from the value's own methods: the value is no number
        return None
    return scalar


def in_numbers(value: object) -> Any:
    """`value` with numbers of any class as int and float, so that equal values are equal settings: a number
    as `number` returns it; a list as a list, a tuple or an array of one dimension as a tuple, of such
    numbers. Any other value, and any other element, is returned as it is.
    """
    scalar = number(value)
    if scalar is not None or value is None or isinstance(value, str | bool):
        return value if scalar is None else scalar
    try:
        is_row = isinstance(value, list | tuple) or getattr(value, "ndim", None) == 1
        if not is_row:
            return value
        elements = [in_numbers(element) for element in value]  # type: ignore[attr-defined]
        return elements if isinstance(value, list) else tuple(elements)
    except MemoryError:  # does not tell whether the value is iterable
        raise
    except Exception:  # any error from the value's own methods: the value is no row of numbers
        return value


def extents(value: object, most: int = 3) -> tuple[int, ...] | None:
    """`value` as a tuple if it is a positive integer or 1 to `most` of them; None otherwise."""
    one = integer(value, 1, _MOST_EXTENT)
    if one is not None:
        return (one,)
    try:
        sizes = [integer(size, 1, _MOST_EXTENT) for size in value]  # type: ignore[attr-defined]  # or it raises
    except MemoryError:  # does not tell whether the value is iterable
        raise
    except Exception:  # not an iterable
        return None
    extents = tuple(size for size in sizes if size is not None)
    return extents if 1 <= len(sizes) <= most and len(extents) == len(sizes) else None


def is_one_of(value: object, choices: Iterable[object]) -> bool:
    """Whether `value` equals one of `choices` that has the same type, so that 1 is not True."""
    return any(type(value) is type(choice) and value == choice for choice in choices)
