"""Element types of arrays, by the names that numpy and torch give them."""

from __future__ import annotations

import numpy as np


def numpy_type(name: str) -> np.dtype[np.generic]:
    """The numpy type called `name`. numpy knows the types of ml_dtypes by name once that is
    imported, which happens here when such a type is asked for.
    """
    if not hasattr(np, name):
        import ml_dtypes  # noqa: F401  # for what it registers
    return np.dtype(name)
