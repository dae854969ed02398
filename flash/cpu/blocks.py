"""What attention and its gradients do alike on a CPU: blocks of queries, buffers, and products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.cpu.paged_rows import KeyRows

_F16_BITS = np.array(0x8FFFE000, np.uint32).view(np.int32)  # bits of an f16, shifted left by 13

# In a product of a matrix and a vector, the order in which BLAS adds may depend on the address and
# the row stride of the matrix. Buffers for BLAS begin at multiples of this.
_ALIGNMENT = 64  # bytes, of a cache line, and of the widest vector register of a CPU


def arithmetic_of(*arrays: KeyRows) -> np.dtype[Any]:
    """The type of the arithmetic: f64 if an array is f64, else f32."""
    return np.dtype(np.float64 if np.float64 in [array.dtype for array in arrays] else np.float32)


def heads_together(first: int, group: int, seq_q: int, most: int) -> Iterator[slice]:
    """The `group` heads from `first` on, which share their key/value head, in blocks.

    A block has several heads when the queries are few, at most `most` rows, so that GEMM sees
    enough rows and no K or V is read twice (decoding with GQA).
    """
    each = max(1, most // seq_q)
    for head in range(first, first + group, each):
        yield slice(head, min(head + each, first + group))


class Workspace:
    """One thread's buffers, allocated once a call; a block takes the front of each. `sizes` are the
    numbers of elements by the names of the buffers.
    """

    def __init__(self, dtype: np.dtype[Any], sizes: Mapping[str, int]) -> None:
        self.dtype = dtype
        self._buffers = {name: _aligned(size, dtype) for name, size in sizes.items()}

    def take(self, name: str, rows: int, columns: int) -> NDArray[Any]:
        """The front of buffer `name` as a dense [rows, columns]."""
        return self._buffers[name][: rows * columns].reshape(rows, columns)

    def copied(self, name: str, x: NDArray[Any]) -> NDArray[Any]:
        """A copy of `x` in buffer `name`, dense and with all axes but the last as rows."""
        copy = self.take(name, math.prod(x.shape[:-1]), x.shape[-1])
        if x.dtype == np.float16 and self.dtype == np.float32 and x.size:
            widen(x, copy.reshape(x.shape))
        else:
            copy.reshape(x.shape)[...] = x
        return copy

    def for_blas(self, name: str, x: NDArray[Any], rows: int) -> NDArray[Any]:
        """`x` itself if BLAS can read it in place, else a copy in buffer `name`. The other factor
        of the product has `rows` rows: if either factor is a vector, `x` is only read in place if
        its layout is that of the copy.
        """
        size = self.dtype.itemsize
        step, unit = x.strides
        in_place = step >= x.shape[1] * size and step % size == 0 and unit == size
        if 1 in (rows, *x.shape):
            in_place &= step == x.shape[1] * size and x.ctypes.data % _ALIGNMENT == 0
        if in_place and x.dtype == self.dtype:
            return x  # numpy 2.0 multiplies other strides slowly, without BLAS
        return self.copied(name, x)

    def scaled(self, name: str, q: NDArray[Any], scale: float) -> tuple[NDArray[Any], float]:
        """The rows of q times the scale in buffer `name`, and the factor that products with them
        still need: 1; or, if the scale would make an element of q infinite, the rows of q and the
        scale.
        """
        rows = self.take(name, math.prod(q.shape[:-1]), q.shape[-1])
        scaled = rows.reshape(q.shape)
        np.multiply(q, self.dtype.type(scale), out=scaled)
        if not (np.isinf(scaled) & np.isfinite(q)).any():
            return rows, 1.0
        scaled[...] = q
        return rows, scale


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of `size` elements whose first is at a multiple of `_ALIGNMENT`."""
    raw = np.empty(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size * dtype.itemsize].view(dtype)


def widen(x: NDArray[np.float16], out: NDArray[np.float32]) -> None:
    """Do `out[...] = x`, in a sixth of the time of numpy's conversion, which decoding would wait
    for.

    The bits of an f16, shifted left by 13, are those of an f32 that is 2^-112 as large, subnormal
    numbers included. Only infinity and NaN come out as finite numbers, of 2^16 and more; they are
    left to numpy. `x` has elements, and `out` is dense.
    """
    bits = out.view(np.int32)
    bits[...] = x.view(np.int16)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _F16_BITS, out=bits)  # the sign is now also in the three bits below it
    np.multiply(out, np.float32(2.0**112), out=out)
    if max(out.max(), -out.min()) >= 2.0**16:
        out[...] = x


def product_of_seen(
    weight: NDArray[Any],
    x: NDArray[Any],
    hidden: NDArray[np.bool_] | None,
    tame: NDArray[Any],
    out: NDArray[Any],
) -> NDArray[Any]:
    """`weight @ x` in `out`; `hidden` is [rows of weight, rows of x], or None if nothing is hidden.
    `tame` has the shape of x, and may be x.

    What is hidden has weight 0, but 0 * NaN is NaN. Hence rows of `x` with NaN or infinity are left
    out of the product, and added to the rows that see them.
    """
    if hidden is None:
        return np.matmul(weight, x, out=out)
    wild = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if wild.size == 0:
        return np.matmul(weight, x, out=out)
    odd = x[wild]
    tame[...] = x
    tame[wild] = 0
    np.matmul(weight, tame, out=out)
    for n, row in zip(wild, odd, strict=True):
        out += np.where(hidden[:, n, None], 0, weight[:, n, None] * row)
    return out


def rows_of(hidden: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """[heads or 1, queries, keys] as [rows, keys], head by head."""
    heads, queries, keys = hidden.shape
    if heads * queries == rows:
        return hidden.reshape(rows, keys)
    return np.broadcast_to(hidden, (rows // queries, queries, keys)).reshape(rows, keys)
