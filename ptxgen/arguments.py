"""Values that a caller gives for a choice or a number: read, or found to be none.

Whatever is given, an array or an object that compares or converts in a way of its own, nothing but
MemoryError is raised here: the caller of these functions raises, and says whose argument it is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Final

import numpy as np

_MOST_EXTENT: Final = (1 << 63) - 1  # more is no size of anything


def integer(value: object, least: int, most: int | None = None) -> int | None:
    """`value`, an integer of any kind (numpy's too) but no bool, as an int; None for what is none
    or out of bounds.
    """
    if isinstance(value, bool | np.bool):
        return None
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # or it raises
    except MemoryError:  # says nothing of the value
        raise
    except Exception:  # whatever the class of the value raises: it is no integer
        return None
    return found if least <= found and (most is None or found <= most) else None


def extents(value: object, most: int = 3) -> tuple[int, ...] | None:
    """`value`, an integer from 1 or one to `most` of them, as a tuple; None for anything else."""
    one = integer(value, 1, _MOST_EXTENT)
    if one is not None:
        return (one,)
    try:
        sizes = [integer(size, 1, _MOST_EXTENT) for size in value]  # type: ignore[attr-defined]  # or it raises
    except MemoryError:  # says nothing of the value
        raise
    except Exception:  # not an iterable
        return None
    found = tuple(size for size in sizes if size is not None)
    return found if 1 <= len(sizes) <= most and len(found) == len(sizes) else None


def is_one_of(value: object, choices: Iterable[object]) -> bool:
    """Whether `value` is equal to a choice of the very same type: 1 is not True."""
    return any(type(value) is type(choice) and value == choice for choice in choices)
