"""Rows of a KV cache in blocks with scales (`flash/operands/blocks.py`), by numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.operands.blocks import BLOCK, LARGEST, LEAST_SCALE, Q4_0, Q8_0, BlockType

Array = NDArray[Any]
_HALF: Final = BLOCK // 2


def in_blocks(rows: Array, dtype: BlockType) -> Array:
    """Rows of numbers [..., n] as bytes of blocks, [..., n / 32 * block bytes]."""
    x = rows.astype(np.float32).reshape(*rows.shape[:-1], -1, BLOCK)
    is_nan, sizes = np.isnan(x), np.abs(x)
    counted = np.where(np.isfinite(x), np.fmin(sizes, np.float32(LARGEST)), np.float32(0))
    scale, codes_of = _ENCODERS[dtype.name](x, counted)
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        inverse = np.where(np.abs(scale) >= np.float32(LEAST_SCALE), np.float32(1) / scale, np.float32(0))
        codes = np.where(is_nan, 0, codes_of(x, inverse)).astype(np.uint8)
        halves = scale.astype(np.float16)
    halves[is_nan.any(-1, keepdims=True)] = np.nan
    if dtype is Q4_0:
        codes = codes[..., :_HALF] | (codes[..., _HALF:] << 4).astype(np.uint8)
    blocks = np.concatenate([halves.view(np.uint8), codes], axis=-1)
    return blocks.reshape(*rows.shape[:-1], -1)


def of_blocks(rows: Array, dtype: BlockType) -> Array:
    """The numbers of rows in blocks: rounded to f16, in f32."""
    blocks = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], -1, dtype.block_bytes)
    scale, codes = blocks[..., :2].copy().view(np.float16).astype(np.float32), blocks[..., 2:]
    if dtype is Q4_0:
        numbers = np.concatenate([codes & 0xF, codes >> 4], axis=-1).astype(np.float32) - np.float32(8)
    else:
        numbers = codes.view(np.int8).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        halves: Array = (numbers * scale).astype(np.float16)  # the product of f32 is exact
    return halves.astype(np.float32).reshape(*rows.shape[:-1], -1)


_Encoder = tuple[Array, Callable[[Array, Array], Array]]


def _eight_bits(x: Array, counted: Array) -> _Encoder:  # noqa: ARG001
    """The scale of each block, f32, and the codes of numbers by its inverse: rounded, ties away from 0."""

    def codes_of(x: Array, inverse: Array) -> Array:
        sizes = np.fmin(np.abs(x * inverse), np.float32(Q8_0.largest))
        below = np.floor(sizes)
        nearest = below + (sizes - below >= np.float32(0.5))
        codes: Array = np.where(x < 0, -nearest, nearest).astype(np.int8)
        return codes

    return counted.max(-1, keepdims=True) / np.float32(Q8_0.largest), codes_of


def _four_bits(x: Array, counted: Array) -> _Encoder:
    """See `_eight_bits`; the first of the largest numbers has code 0."""
    largest = counted.max(-1, keepdims=True)
    first = counted.argmax(-1)[..., None]
    is_negative = np.take_along_axis(x, first, axis=-1) < 0

    def codes_of(x: Array, inverse: Array) -> Array:
        # A fused product in f32: near where codes change, this sum of f64 is exact before it is rounded.
        moved = (x.astype(np.float64) * inverse.astype(np.float64) + 8.5).astype(np.float32)
        codes: Array = np.trunc(np.nan_to_num(moved.clip(0, 15), nan=0.0))
        return codes

    return np.where(is_negative, -largest, largest) / np.float32(-Q4_0.largest), codes_of


_ENCODERS: Final[dict[str, Callable[[Array, Array], _Encoder]]] = {
    Q8_0.name: _eight_bits,
    Q4_0.name: _four_bits,
}
