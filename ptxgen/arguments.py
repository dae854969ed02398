"""Reads integers, extents and choices that a user passes as arguments.

These functions raise nothing but MemoryError, whatever object is passed: they report a misfit by
their result, and the calling function raises the error that names the argument.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Final

import numpy as np

_MOST_EXTENT: Final = (1 << 63) - 1  # no array is larger


def integer(value: object, least: int, most: int | None = None) -> int | None:
    """`value` as an int if it is an integer from `least` to `most`; None otherwise.

    Integers of any class are accepted, numpy's included; bools are not.
    """
    if isinstance(value, bool | np.bool):
        return None
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # or it raises
    except MemoryError:  # does not tell whether the value is an integer
        raise
    except Exception:  # any error from the value's own __index__: the value is no integer
        return None
    return found if least <= found and (most is None or found <= most) else None


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
    found = tuple(size for size in sizes if size is not None)
    return found if 1 <= len(sizes) <= most and len(found) == len(sizes) else None


def is_one_of(value: object, choices: Iterable[object]) -> bool:
    """Whether `value` equals one of `choices` that has the same type, so that 1 is not True."""
    return any(type(value) is type(choice) and value == choice for choice in choices)
