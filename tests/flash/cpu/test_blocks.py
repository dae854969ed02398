"""Buffers of `flash.cpu.blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash.cpu.blocks import Workspace


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hidden_elements_are_zero_whatever_they_were(dtype: Any) -> None:
    space, rng = Workspace(np.dtype(dtype)), np.random.default_rng(0)
    columns = np.arange(9)
    staircase = columns[None] > np.arange(5)[:, None]
    same_for_all_rows = np.broadcast_to(columns % 3 == 0, (5, 9))
    for hidden in (staircase, staircase, staircase[:, ::-1], staircase[:3, :7], same_for_all_rows, staircase):
        x = rng.standard_normal(hidden.shape).astype(dtype)
        x[::2, ::2] = np.nan
        x[1, 1:] = np.inf
        wanted = np.where(hidden, dtype(0), x)
        space.hide(x, hidden)
        np.testing.assert_array_equal(x, wanted)
        assert not np.signbit(x[hidden]).any()
