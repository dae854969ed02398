"""Blocks of queries, buffers and products that attention and its gradients share on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cpu.paged_rows import KeyIndex, KeyRows, PagedRows

_F16_BITS = np.array(0x8FFFE000, np.uint32).view(np.int32)  # bits of an f16, shifted left by 13

# In a product of a matrix and a vector, the order in which BLAS adds may depend on the address and
# the row stride of the matrix. Buffers for BLAS begin at multiples of this.
_ALIGNMENT = 64  # bytes, of a cache line, and of the widest vector register of a CPU

# In OpenBLAS it does not for 16 keys, but for matrices of up to 8 columns that are not dense. Tests compare
# the bits, with each of its kernels (`make blas`).
_SAFE_COLUMNS: Final = 16
_BLAS: Final = np.show_config(mode="dicts")["Build Dependencies"].get("blas", {})
IS_OPENBLAS: Final = "openblas" in _BLAS.get("name", "")

# With this number of rows or fewer, BLAS multiplies keys by rows in less time than rows by keys: a third
# to a half of it where OpenBLAS has kernels of AVX-512, with the copy that transposes the scores.
_FEW_ROWS: Final = 16


def arithmetic_of(*arrays: KeyRows) -> np.dtype[Any]:
    """The type of the arithmetic: f64 if an array is f64, else f32."""
    return np.dtype(np.float64 if np.float64 in [array.dtype for array in arrays] else np.float32)


def heads_together(heads: range, group: int, seq_q: int, most: int, most_kv: int = 1) -> Iterator[slice]:
    """Query heads in blocks of at most `most` rows, or of one head: some of the `group` heads that
    share a key/value head, or all heads of at most `most_kv` key/value heads. `heads` are those of
    whole groups.

    A block has several heads when the queries are few, so that GEMM sees enough rows, no K or V is
    read twice (decoding with GQA), and numpy is called once for all of them.
    """
    if not heads:
        return
    each = max(1, most // seq_q)
    if each >= group:
        each = min(each // group, most_kv) * group
        for first in range(heads.start, heads.stop, each):
            yield slice(first, min(first + each, heads.stop))
        return
    for of_group in range(heads.start, heads.stop, group):
        for first in range(of_group, of_group + group, each):
            yield slice(first, min(first + each, of_group + group))


class Workspace:
    """One thread's buffers during a call, of elements of `dtype`; a block takes the front of each. A buffer
    is allocated when it is first taken, and again when a larger part is taken; arrays that were taken before
    then keep the old memory.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._buffers: dict[tuple[str, np.dtype[Any]], NDArray[Any]] = {}
        # By name: the last array taken from a buffer, and its shape. Small calls repeat their shapes.
        self._last: dict[str, tuple[tuple[Any, ...], NDArray[Any]]] = {}
        self._ones = np.empty(0, dtype)
        self._hidden: NDArray[np.bool_] | None = None  # of which buffer "seen" has the bits

    @classmethod
    def spare(cls, dtype: np.dtype[Any]) -> Workspace:
        """A workspace whose buffers an earlier call allocated (`end`), or a new one."""
        try:
            space = _SPARE.pop()
        except IndexError:  # another thread may have taken the last
            return cls(dtype)
        return space if space.dtype == dtype else cls(dtype)

    def end(self) -> None:
        """Let a later call have this workspace, which its call no longer uses, if its buffers are small:
        allocating them is a fifth of the time of the smallest calls.
        """
        if len(_SPARE) < _MOST_SPARE and sum([x.nbytes for x in self._buffers.values()]) <= _SPARE_BYTES:
            self._hidden = None
            _SPARE.append(self)

    def ones(self, count: int) -> NDArray[Any]:
        """`count` ones, at a multiple of `_ALIGNMENT`."""
        if count > self._ones.size:
            self._ones = _aligned(count, self.dtype)
            self._ones.fill(1)
        return self._ones[:count]

    def hide(self, x: NDArray[Any], hidden: NDArray[np.bool_]) -> None:
        """Set the elements of `x` [rows, columns] to 0 where `hidden`, of its shape, is True: by AND of bits,
        in less time than `np.copyto` takes. The array `hidden` must not change during a call: all blocks on
        the diagonal of a causal call have the same.
        """
        bits = np.dtype(f"i{self.dtype.itemsize}")
        rows, columns = hidden.shape
        mask = self.planes("seen", 1, rows, columns, bits)[0]
        if self._hidden is None or _layout_of(self._hidden) != _layout_of(hidden):
            np.subtract(hidden, 1, out=mask, dtype=np.int8)
            self._hidden = hidden  # so that its memory is not that of another array
        np.bitwise_and(x.view(bits), mask, out=x.view(bits))

    def take(self, name: str, rows: int, columns: int) -> NDArray[Any]:
        """The front of buffer `name` as a dense array [rows, columns]."""
        shape = rows, columns
        last = self._last.get(name)
        if last is not None and last[0] == shape:
            return last[1]
        taken = self._buffer(name, rows * columns, self.dtype)[: rows * columns].reshape(shape)
        self._last[name] = shape, taken
        return taken

    def planes(
        self, name: str, planes: int, rows: int, columns: int, dtype: np.dtype[Any] | None = None
    ) -> NDArray[Any]:
        """The front of buffer `name` as [planes, rows, columns], each plane dense and aligned. With
        another dtype it is another buffer.
        """
        dtype = dtype or self.dtype
        shape = planes, rows, columns, dtype
        last = self._last.get(name)
        if last is not None and last[0] == shape:
            return last[1]
        line = _ALIGNMENT // dtype.itemsize
        size = -(-rows * columns // line) * line
        apart = self._buffer(name, planes * size, dtype)[: planes * size].reshape(planes, size)
        taken = apart[:, : rows * columns].reshape(planes, rows, columns)
        self._last[name] = shape, taken
        return taken

    def copied(self, name: str, x: NDArray[Any]) -> NDArray[Any]:
        """A copy of `x` in buffer `name`, dense and with all axes but the last as rows."""
        copy = self.take(name, math.prod(x.shape[:-1]), x.shape[-1])
        converted(x, copy.reshape(x.shape))
        return copy

    def for_blas(self, name: str, x: NDArray[Any], rows: int) -> NDArray[Any]:
        """The matrices `x` [planes, n, dim] or `x` [n, dim] themselves if BLAS can read them in place,
        else a copy in buffer `name`. The other factor of each product has `rows` rows: if either
        factor is a vector, `x` is only read in place if its layout is that of the copy.
        """
        if self._has_blas_layout(x, rows):
            return x  # numpy 2.0 multiplies other strides slowly, without BLAS
        copy = self.planes(name, math.prod(x.shape[:-2]), *x.shape[-2:])
        copy = copy.reshape(x.shape)
        converted(x, copy)
        return copy

    def of_keys(
        self, name: str, source: KeyRows, index: KeyIndex, rows: int
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Keys or values at `index` as `for_blas` has them, [planes, n, dim], and which of the heads
        of `index` they are of: all heads, read in place, or each by itself in buffer `name`, to be used
        before the next is generated.
        """
        count, first = index.heads.stop - index.heads.start, index.heads.start
        if not isinstance(source, PagedRows):
            whole = source[index]
            if count == 1 or self._has_blas_layout(whole, rows):
                yield slice(count), self.for_blas(name, whole, rows)
                return
            for n in range(count):
                yield slice(n, n + 1), self.for_blas(name, whole[n : n + 1], rows)
            return
        copy = self.planes(name, 1, index.length, source.shape[3])
        for n in range(count):
            one = index._replace(heads=slice(first + n, first + n + 1))
            for _ in self.copied_in_steps(name, source, one, copy):
                yield slice(n, n + 1), copy

    def copied_in_steps(
        self, name: str, source: KeyRows, index: KeyIndex, copy: NDArray[Any]
    ) -> Iterator[None]:
        """Copy the keys or values at `index` to `copy` [kv_heads, n, dim], whose planes are dense, n keys at
        a time, each time over the previous ones. The number of keys in `index` is a multiple of n. Keys that
        are read from pages of another dtype go through buffer `name` of that dtype.
        """
        (_, step, dim), first = copy.shape, index.keys.start
        starts = range(first, index.keys.stop, step)
        if isinstance(source, PagedRows):
            narrow = copy
            if source.dtype != self.dtype:
                narrow = self.planes(name, len(copy), step, dim, source.dtype)
            for k0 in starts:
                source.read(index.heads, slice(k0, k0 + step), narrow)
                if narrow is not copy:
                    converted(narrow, copy)
                yield
            return
        whole = source[index]
        for k0 in starts:
            converted(whole[:, k0 - first : k0 - first + step], copy)
            yield

    def has_chunk_layout(self, x: NDArray[Any], rows: int) -> bool:
        """Whether BLAS can read chunks `x` [..., keys, dim] in place, with `rows` rows in the other
        factor of each product, and the sums are those of a copy. The sums of a vector and a matrix are so in
        OpenBLAS if the matrix has `_SAFE_COLUMNS` columns or more; other libraries do not say.
        """
        if not x.flags.aligned or (rows == 1 and (not IS_OPENBLAS or x.shape[-1] < _SAFE_COLUMNS)):
            return self._has_blas_layout(x, rows)
        return self._has_blas_layout(x, max(rows, 2))

    def _has_blas_layout(self, x: NDArray[Any], rows: int) -> bool:
        """Whether BLAS can read `x` in place, by the rules of `for_blas`."""
        if x.dtype != self.dtype:
            return False
        size = self.dtype.itemsize
        *outer, step, unit = x.strides
        n, dim = x.shape[-2:]
        if unit != size or step < dim * size or step % size:
            return False
        if 1 not in (rows, n, dim):
            return True
        # The stride of an axis of length 1 leads nowhere.
        ahead = [stride for length, stride in zip(x.shape, outer, strict=False) if length > 1]
        misaligned = x.ctypes.data % _ALIGNMENT or any(stride % _ALIGNMENT for stride in ahead)
        return step == dim * size and not misaligned

    def _buffer(self, name: str, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        key = name, dtype
        buffer = self._buffers.get(key)
        if buffer is None or buffer.size < size:
            self._last.pop(name, None)  # it holds the memory of the smaller buffer
            buffer = self._buffers[key] = _aligned(size, dtype)
        return buffer

    def scaled(self, name: str, q: NDArray[Any], scale: float) -> tuple[NDArray[Any], float]:
        """The rows of q times the scale in buffer `name`, and the factor that products with them
        still need: 1; or, if the scale would make an element of q infinite, the rows of q and the
        scale.
        """
        rows = self.take(name, math.prod(q.shape[:-1]), q.shape[-1])
        scaled = rows.reshape(q.shape)
        np.multiply(q, self.dtype.type(scale), out=scaled)
        if abs(scale) <= 1 or np.isfinite(rows).all() or not (np.isinf(scaled) & np.isfinite(q)).any():
            return rows, 1.0
        scaled[...] = q
        return rows, scale


_SPARE: Final[list[Workspace]] = []
_MOST_SPARE: Final = 4
_SPARE_BYTES: Final = 2**16


def _layout_of(x: NDArray[Any]) -> tuple[object, ...]:
    """What distinguishes an array from others that exist at the same time."""
    return x.__array_interface__["data"], x.shape, x.strides


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of `size` elements whose first is at a multiple of `_ALIGNMENT`."""
    raw = np.empty(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    first = -raw.__array_interface__["data"][0] % _ALIGNMENT  # in a third of the time of `raw.ctypes`
    return raw[first : first + size * dtype.itemsize].view(dtype)


def converted(x: NDArray[Any], out: NDArray[Any]) -> None:
    """Do `out[...] = x`, faster than numpy if x is of f16 and out of f32."""
    if x.dtype == np.float16 and out.dtype == np.float32 and x.size:
        widen(x, out)
    else:
        out[...] = x


def widen(x: NDArray[np.float16], out: NDArray[np.float32]) -> None:
    """Do `out[...] = x`, in a sixth of the time of numpy's conversion; decoding would wait for that.

    The bits of an f16, shifted left by 13, are those of an f32 that is 2^-112 as large, subnormal
    numbers included. Only infinity and NaN come out as finite numbers, of 2^16 and more; they are
    left to numpy. There are none if the sum of squares is below 2^32, which BLAS computes in less than half
    of the time of minimum and maximum. `x` has elements.
    """
    bits = out.view(np.int32)
    bits[...] = x.view(np.int16)
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _F16_BITS, out=bits)  # the sign is now also in the three bits below it
    np.multiply(out, np.float32(2.0**112), out=out)
    flat = out.reshape(-1)
    if np.dot(flat, flat) >= 2.0**32 and max(out.max(), -out.min()) >= 2.0**16:
        out[...] = x


def scores_of(space: Workspace, q: NDArray[Any], k: NDArray[Any], out: NDArray[Any]) -> None:
    """Write `q @ k^T` of matrices [rows, d] and [keys, d], or of planes of such, to `out`, which is
    dense. Few rows need buffer "transposed" of as many elements as `out`.
    """
    *planes, rows, keys = out.shape
    if not 1 < rows <= _FEW_ROWS or keys == 1:
        np.matmul(q, k.swapaxes(-1, -2), out=out)
        return
    transposed = space.take("transposed", math.prod((*planes, keys)), rows).reshape(*planes, keys, rows)
    np.matmul(k, q.swapaxes(-1, -2), out=transposed)
    out[...] = transposed.swapaxes(-1, -2)


def product_of_seen(
    space: Workspace,
    name: str,
    weight: NDArray[Any],
    x: NDArray[Any],
    hidden: NDArray[np.bool_] | None,
    out: NDArray[Any],
) -> NDArray[Any]:
    """`weight @ x` in `out`, of matrices or of planes of them; `hidden` is [..., rows of weight, rows
    of x], or None if nothing is hidden. Buffer `name` may be the one that holds x.

    What is hidden has weight 0, but 0 * NaN is NaN. Hence rows of `x` with NaN or infinity are left
    out of the product, and added to the rows that see them.
    """
    if hidden is None or np.isfinite(x).all():
        return np.matmul(weight, x, out=out)
    wild = ~np.isfinite(x).all(axis=-1)
    tame = space.planes(name, math.prod(x.shape[:-2]), *x.shape[-2:]).reshape(x.shape)
    nonfinite = x[wild]
    tame[...] = x
    tame[wild] = 0
    np.matmul(weight, tame, out=out)
    for *plane, n, row in zip(*np.nonzero(wild), nonfinite, strict=True):
        at = *plane, slice(None), n, None
        out[tuple(plane)] += np.where(hidden[at], 0, weight[at] * row)
    return out


def rows_of(hidden: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """`hidden` [heads or 1, queries, keys] as [rows, keys], head by head."""
    heads, queries, keys = hidden.shape
    if heads * queries == rows:
        return hidden.reshape(rows, keys)
    return np.broadcast_to(hidden, (rows // queries, queries, keys)).reshape(rows, keys)
