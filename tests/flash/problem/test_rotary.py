"""Rotary embedding against multiplication of complex numbers in float64."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flash.problem.rotary import rotary_tables, rotated
from ptxgen.errors import ConfigError

pytestmark = pytest.mark.grid

EITHER_ORDER = pytest.mark.parametrize("interleaved", [False, True])


def rotation(x: Any, positions: Any, rotary_dim: int, interleaved: bool) -> Any:
    """As RoFormer has it: pairs of columns are complex numbers, multiplied by e^(i position w)."""
    half = rotary_dim // 2
    wide = x.astype(np.float64)
    pairs = wide[..., :rotary_dim].reshape(*x.shape[:3], *((half, 2) if interleaved else (2, half)))
    pairs = pairs if interleaved else pairs.swapaxes(-1, -2)
    angle = positions[:, None, :, None] * 10000.0 ** (-np.arange(half) / half)
    spun = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
    parts = np.stack([spun.real, spun.imag], axis=-1)
    parts = parts if interleaved else parts.swapaxes(-1, -2)
    wide[..., :rotary_dim] = parts.reshape(*x.shape[:3], rotary_dim)
    return wide


@EITHER_ORDER
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("dim", "rotary_dim"), [(16, 16), (16, 6), (9, 8), (2, 2)])
def test_pairs_are_multiplied_by_a_complex_number(
    dim: int, rotary_dim: int, dtype: Any, interleaved: bool
) -> None:
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((3, 2, 5, dim)).astype(dtype)
    positions = rng.integers(0, 4000, (3, 5))
    tables = rotary_tables(4000, rotary_dim)
    got = rotated(x, *tables, positions, interleaved=interleaved)
    assert got.dtype == np.float32
    # The tables, two products and a sum are rounded to f32: |a| and |b| are at most their pair's
    # size, so that the errors are at most 2 (tables) + 2 (products) + 1 (sum, itself up to sqrt 2)
    # half units of 2^-23 of twice that size.
    wanted = rotation(x, positions, rotary_dim, interleaved)
    size = np.abs(x.astype(np.float64)).max()
    assert np.abs(got - wanted).max() <= 6 * 2.0**-24 * 2 * size
    np.testing.assert_array_equal(got[..., rotary_dim:], x[..., rotary_dim:].astype(np.float32))


@EITHER_ORDER
def test_position_zero_turns_nothing(interleaved: bool) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 8), dtype=np.float32)
    zero = np.zeros((1, 3), int)
    np.testing.assert_array_equal(rotated(x, *rotary_tables(1, 8), zero, interleaved=interleaved), x)


def test_what_is_no_number_stays_in_its_row() -> None:
    x = np.ones((1, 1, 2, 4), np.float32)
    x[0, 0, 0, :2] = np.inf, np.nan
    got = rotated(x, *rotary_tables(3, 4), np.array([[1, 2]]), interleaved=True)
    assert not np.isfinite(got[0, 0, 0, :2]).any()
    assert np.isfinite(got[0, 0, 1]).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"positions": -1}, "rotary_tables: positions must be an integer from 0 to 134217728, got -1"),
        ({"rotary_dim": 7}, "rotary_tables: rotary_dim must be an even integer from 2 to 576, got 7"),
        ({"base": float("inf")}, "rotary_tables: base must be a finite number from 1 on, got inf"),
    ],
)
def test_tables_that_cannot_be_made_are_refused(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"positions": 3, "rotary_dim": 4, **wrong}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        rotary_tables(**arguments)
