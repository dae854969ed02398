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


def test_small_workspaces_are_used_again_and_large_ones_are_not() -> None:
    f32 = np.dtype(np.float32)
    small, large = Workspace.spare(f32), Workspace(f32)
    taken = small.take("q", 3, 5)
    hidden = np.ones((3, 5), bool)
    small.hide(taken, hidden)
    large.take("q", 1, 1 << 20)
    for space in (large, small):
        space.end()
    again = Workspace.spare(f32)
    assert again is small
    assert np.shares_memory(again.take("q", 3, 5), taken)
    x = np.full((3, 5), 2, np.float32)
    hidden.fill(False)  # as callers may between calls
    again.hide(x, hidden)
    assert (x == 2).all()
    assert Workspace.spare(f32) is not large
