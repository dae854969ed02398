"""Rotary position embedding: queries and keys rotated by angles that grow with their positions.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2: the
product of two rotated rows depends on the distance between their positions, not on the positions
themselves.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.families.request import MAX_HEAD_DIM
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, shown

Array = NDArray[Any]

_MOST_POSITIONS: Final = 2**27  # tables of 2**27 rows take GiB; no context is longer


def rotary_tables(positions: int, rotary_dim: int, base: float = 10000.0) -> tuple[Array, Array]:
    """cos and sin of position * base^(-2 i / rotary_dim), for positions from 0 to `positions` - 1
    and i below rotary_dim / 2: two arrays f32 [positions, rotary_dim / 2], computed in f64.
    RoFormer, equation 15.

    `positions` is at most 2**27, `rotary_dim` even and at most 576 (the largest head_dim), `base` a
    finite number from 1 on. Raises `ConfigError` for anything else.
    """
    if integer(positions, 0, _MOST_POSITIONS) is None:
        raise ConfigError(
            f"rotary_tables: positions must be an integer from 0 to {_MOST_POSITIONS}, got {shown(positions)}"
        )
    columns = integer(rotary_dim, 2, MAX_HEAD_DIM)
    if columns is None or columns % 2:
        raise ConfigError(
            f"rotary_tables: rotary_dim must be an even integer from 2 to {MAX_HEAD_DIM}, got "
            f"{shown(rotary_dim)}"
        )
    if not _is_base(base):
        raise ConfigError(f"rotary_tables: base must be a finite number from 1 on, got {shown(base)}")
    frequencies = float(base) ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim)
    angles = np.arange(positions)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def resolved_rotary_dim(value: object, head_dim: int) -> int:
    """The columns of queries that a config rotates. Raises `ConfigError` if they cannot be."""
    columns = integer(value, 0, head_dim)
    if columns is None or columns % 2:
        raise ConfigError(
            f"AttentionConfig: rotary_dim must be an even integer from 0 to head_dim={head_dim}, got "
            f"{shown(value)}"
        )
    return columns


def why_not_rotated(page_size: int | None, causal: object, *, is_fp8: bool) -> str:
    """Why a config cannot rotate queries, as the end of a sentence; the empty string if it can."""
    if page_size is None:
        return (
            "is for queries of keys in pages, which hold rotated keys; use page_size=16 and varlen=True with "
            "it, DecodeKernel, whose launches take rotary_cos and rotary_sin, or rotate q and k before the "
            "launch"
        )
    if causal == "top_left":
        return (
            "is for queries of which the last is at the last key, got causal='top_left'; use "
            "causal='bottom_right', or rotate q before the launch"
        )
    if is_fp8:
        return "is for queries of f32, f16 and bf16, got fp8; rotate q before it is rounded to fp8"
    return ""


def _is_base(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return 1 <= float(value) < math.inf
    except OverflowError:  # a Python int beyond float64
        return False


def rotated(
    x: Array, cos: Array, sin: Array, positions: NDArray[np.integer[Any]], *, interleaved: bool
) -> NDArray[np.float32]:
    """The rows of x, [items, heads, rows, dim], rotated: f32 of the same shape, each product and
    sum rounded to f32. The caller rounds the result to its type, once.

    cos and sin are [positions, rotary_dim / 2]; `positions` [items, rows] gives the row of these
    tables for each row of x. Column i of the tables rotates columns 2 i and 2 i + 1 of x if
    `interleaved` (GPT-J), else columns i and i + rotary_dim / 2 (GPT-NeoX, Llama). Columns from
    rotary_dim on stay as they are.
    """
    half = cos.shape[1]
    wide = x.astype(np.float32)
    step = 2 if interleaved else 1
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(first.start + (1 if interleaved else half), 2 * half, step)
    a, b = wide[..., first], wide[..., second]
    c, s = (table[positions][:, None].astype(np.float32) for table in (cos, sin))
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity in x are allowed
        wide[..., first], wide[..., second] = a * c - b * s, a * s + b * c
    return wide
