"""Element types of arrays, by the names that numpy and torch give them."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from ptxgen.types import narrow_dtype

_OF_NUMPY: Final = 1  # `isbuiltin` of numpy's own types


@functools.cache  # asked for each new array
def numpy_type(name: str) -> np.dtype[np.generic]:
    """The numpy type called `name`, of numpy or of ml_dtypes. Raises `TypeError` for a name of neither,
    `BackendError` where ml_dtypes is missing.
    """
    try:
        return np.dtype(name)  # also of ml_dtypes, once that is imported
    except TypeError:
        return narrow_dtype(name)


def typestr(dtype: np.dtype[np.generic]) -> str:
    """The name of a type in an array interface: a type that is not numpy's own is an untyped element,
    whatever its package calls it, because numpy does not read that ("<f1" of float8_e5m2).
    """
    return dtype.str if dtype.isbuiltin == _OF_NUMPY else f"<V{dtype.itemsize}"
