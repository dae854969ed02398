"""Memory of launches in which an element that no kernel wrote shows."""

from __future__ import annotations

import numpy as np

from flash.operands.dtypes import DType
from ptxgen.arrays.views import ArrayView, view


class NanMemory:
    """Memory on the host, full of NaN (`flash.calls.memory.Memory`)."""

    def array(self, shape: tuple[int, ...], dtype: DType, *, is_cleared: bool = False) -> ArrayView:
        assert not is_cleared
        return view(np.full(shape, np.nan, dtype.numpy), "memory")
