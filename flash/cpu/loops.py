"""The loops of the `compiled` backend, which Numba compiles for the CPU when they are first called.

The order of each sum of products follows from the numbers of keys and columns alone; that of the sum of a
row's weights also from how many numbers the CPU adds at once. Keys and values begin anywhere in a dense
memory, so that those in pages are read where they lie, and their sums are those of contiguous ones.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from flash.cpu.compiler import compiled, part_of_loop
from flash.cpu.vectors import (
    HALF,
    KEYS,
    addition_to,
    bits_of,
    count_at,
    counted,
    float_of,
    in_widest_vectors,
    products_of,
    widened,
)

Array = NDArray[Any]
f32: Final = np.float32

# LLVM may add in any order, so that it makes vectors of sums. NaN and infinity count.
_ANY_ORDER: Final = frozenset({"reassoc", "contract", "nsz"})
# Operations are as they are written, but for fused multiply-adds.
_AS_WRITTEN: Final = frozenset({"contract"})

# Below the first a weight is 0 as f32. A score above the second has weight infinity, though e^88 is an f32:
# 2^n is then within the exponents of f32 for all others, if it is made as 2^(n + 32) * 2^-32. The sums are
# unsafe, and are computed again with the maximum of the row.
_LEAST: Final = f32(-104.0)
_MOST: Final = f32(65.0)
_AHEAD: Final = f32(2.0**-32)
_INFINITY: Final = f32(np.inf)
_LOG2_E: Final = f32(1.4426950408889634)
# x + this ends with the bits of n + 32, and x + this - this is n, the nearest integer.
_TO_INTEGER: Final = f32(1.5 * 2**23 + 32)
_MANTISSA_BITS: Final = np.uint32(23)
# ln 2 in two numbers, of which a product of the first with n is exact (Cody and Waite).
_LN2_HIGH: Final = f32(0.693359375)
_LN2_LOW: Final = f32(-2.12194440e-4)
# (exp(r) - 1 - r) / r^2 for |r| up to ln(2) / 2, highest power first (Cephes, expf.c).
_C5: Final = f32(1.9875691500e-4)
_C4: Final = f32(1.3981999507e-3)
_C3: Final = f32(8.3334519073e-3)
_C2: Final = f32(4.1665795894e-2)
_C1: Final = f32(1.6666665459e-1)
_C0: Final = f32(5.0000001201e-1)


@part_of_loop(_AS_WRITTEN)
def _weight(score: Any) -> Any:
    """e^score within 1.4 units in the last place; 0 below _LEAST, infinity above _MOST, NaN of NaN."""
    # Numbers on the way that are subnormal would take a CPU ten times as long.
    x = f32(0) if score < _LEAST else score
    shifted = x * _LOG2_E + _TO_INTEGER
    n = shifted - _TO_INTEGER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    p = p * (r * r) + r + f32(1)
    p = float_of(bits_of(p) + (bits_of(shifted) << _MANTISSA_BITS)) * _AHEAD
    p = f32(0) if score < _LEAST else p
    return p if score <= _MOST else score * _INFINITY


@compiled(_ANY_ORDER)
def weights(score: Array, total: Array) -> None:
    """Write the exponentials of `score` [rows, keys] over it, and add their sums to `total` [rows]."""
    in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        row_scores = score[row]
        added = f32(0)
        for key in range(keys):
            weight = _weight(row_scores[key])
            row_scores[key] = weight
            added += weight
        total[row] += added


@compiled(_ANY_ORDER)
def weights_of_seen(score: Array, hidden: Array, total: Array) -> None:
    """Do what `weights` does; a `hidden` key [rows, keys] has weight 0, whatever its score is."""
    in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        row_scores, unseen = score[row], hidden[row]
        added = f32(0)
        for key in range(keys):
            weight = f32(0) if unseen[key] else _weight(row_scores[key])
            row_scores[key] = weight
            added += weight
        total[row] += added


@compiled(_AS_WRITTEN)
def weights_again(score: Array, lse: Array) -> None:
    """Write the exponentials of `score` [rows, keys] less `lse` [rows] over the scores."""
    in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        row_scores, shift = score[row], lse[row]
        for key in range(keys):
            row_scores[key] = _weight(row_scores[key] - shift)


@compiled(_AS_WRITTEN)
def weights_again_of_seen(score: Array, hidden: Array, lse: Array) -> None:
    """Do what `weights_again` does; a `hidden` key [rows, keys] has weight 0, whatever its score is."""
    in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        row_scores, unseen, shift = score[row], hidden[row], lse[row]
        for key in range(keys):
            row_scores[key] = f32(0) if unseen[key] else _weight(row_scores[key] - shift)


@compiled(_AS_WRITTEN)
def score_gradients(dweight: Array, weight: Array, delta: Array) -> None:
    """Write `(dweight - delta) * weight` over `dweight` [rows, keys]; delta is [rows]."""
    in_widest_vectors()
    rows, keys = weight.shape
    for row in range(rows):
        row_gradients, row_weights, less = dweight[row], weight[row], delta[row]
        for key in range(keys):
            row_gradients[key] = (row_gradients[key] - less) * row_weights[key]


@compiled(_AS_WRITTEN)
def score_gradients_of_seen(dweight: Array, hidden: Array, weight: Array, delta: Array) -> None:
    """Do what `score_gradients` does; a `hidden` key [rows, keys] has the gradient 0."""
    in_widest_vectors()
    rows, keys = weight.shape
    for row in range(rows):
        row_gradients, unseen, row_weights, less = dweight[row], hidden[row], weight[row], delta[row]
        for key in range(keys):
            row_gradients[key] = f32(0) if unseen[key] else (row_gradients[key] - less) * row_weights[key]


# A thread that waits without sleeping leaves its core to another one after this number of looks, 0.1 us.
_LOOKS_TO_YIELD: Final = 256

# Keys of a head that are read before those of the next head, so that memory is read in its order, wherever
# pages have the heads of a row side by side.
_KEYS_OF_A_HEAD: Final = 16

# Keys whose scores are stored until their values are read: those of eight heads take 64 KiB.
_KEYS_AT_ONCE: Final = 2048

# More rows at once have no room in the 16 registers of AVX2, but for weights, which may be read from memory.
_products_of_two_rows: Final = products_of(2)
_products_of_a_row: Final = products_of(1)
_add_to_four_rows: Final = addition_to(4)
_add_to_a_row: Final = addition_to(1)


if os.name == "posix":
    _yield_core: Any = types.ExternalFunction("sched_yield", types.int32())
else:

    @part_of_loop(_AS_WRITTEN)
    def _yield_core() -> None:
        """Do nothing, so that the thread keeps its core: on Windows no library that every process loads has
        sched_yield.
        """


@part_of_loop(_AS_WRITTEN)
def _address(x: Array, element: int) -> Any:
    """The address of an element of a dense array."""
    return np.uint64(x.ctypes.data) + np.uint64(element * x.itemsize)


@part_of_loop(_AS_WRITTEN)
def _four(memory: Array, offsets: Array, key: int, first: int) -> tuple[Any, ...]:
    """The addresses of the keys `key` to `key` + 3 of a head that begins at element `first`."""
    return (
        _address(memory, first + offsets[key]),
        _address(memory, first + offsets[key + 1]),
        _address(memory, first + offsets[key + 2]),
        _address(memory, first + offsets[key + 3]),
    )


@part_of_loop(_AS_WRITTEN)
def _add_products(q: Array, memory: Array, offsets: Array, first: int, column: int, out: Array) -> None:
    """Add to `out` [rows, keys] the products of the columns of q from `column` on."""
    rows, dim = q.shape
    for row in range(rows):
        for key in range(len(offsets)):
            at, product = first + offsets[key], f32(0)
            for n in range(column, dim):
                product += q[row, n] * widened(memory[at + n])
            out[row, key] += product


@compiled(_AS_WRITTEN)
def products(q: Array, memory: Array, offsets: Array, head_stride: int, out: Array) -> None:
    """Write `q @ k^T` to `out` [kv_heads, rows, keys]; q is [kv_heads, rows, dim], and key n of head h begins
    at memory[offsets[n] + h * head_stride].
    """
    kv_heads, rows, dim = q.shape
    keys, twos = len(offsets), rows // 2 * 2
    columns = dim // HALF * HALF
    step, out_step = np.uint64(dim * q.itemsize), np.uint64(keys * out.itemsize)
    if keys < KEYS:
        columns = 0
    count = np.uint64(columns)
    for begin in range(0, keys if columns else 0, _KEYS_OF_A_HEAD):
        end = min(begin + _KEYS_OF_A_HEAD, keys)
        for head in range(kv_heads):
            for after in range(begin + KEYS, end + KEYS, KEYS):
                key = min(after, keys) - KEYS  # the last four may be among those before, with the same bits
                four = _four(memory, offsets, key, head * head_stride)
                for row in range(0, twos, 2):
                    at, to = head * rows + row, (head * rows + row) * keys + key
                    of_rows = _address(q, at * dim), step
                    _products_of_two_rows(memory, of_rows + four + (count, _address(out, to), out_step))
                if twos < rows:
                    at, to = head * rows + twos, (head * rows + twos) * keys + key
                    of_rows = _address(q, at * dim), step
                    _products_of_a_row(memory, of_rows + four + (count, _address(out, to), out_step))
    if columns < dim:
        for head in range(kv_heads):
            if not columns:
                out[head] = f32(0)
            _add_products(q[head], memory, offsets, head * head_stride, columns, out[head])


@part_of_loop(_AS_WRITTEN)
def _add_values(
    weight: Array, memory: Array, offsets: Array, first: int, key: int, column: int, total: Array
) -> None:
    """Add to a row the columns from `column` on of the values from `key` on, times their weights."""
    for n in range(key, len(offsets)):
        at, factor = first + offsets[n], weight[n]
        for c in range(column, len(total)):
            total[c] += factor * widened(memory[at + c])


@part_of_loop(_AS_WRITTEN)
def _add_sums(weight: Array, memory: Array, offsets: Array, head_stride: int, out: Array) -> None:
    """Add to `out` the product `weight @ v` that `sums` writes."""
    kv_heads, rows, dim = out.shape
    keys, fours = len(offsets), rows // 4 * 4
    whole = keys // KEYS * KEYS
    columns = dim // HALF * HALF
    count = np.uint64(columns)
    step, out_step = np.uint64(keys * weight.itemsize), np.uint64(dim * out.itemsize)
    for begin in range(0, whole, _KEYS_OF_A_HEAD):
        end = min(begin + _KEYS_OF_A_HEAD, whole)
        for head in range(kv_heads):
            for key in range(begin, end, KEYS):
                four = _four(memory, offsets, key, head * head_stride)
                for row in range(0, fours, 4):
                    at, to = (head * rows + row) * keys + key, (head * rows + row) * dim
                    of_rows = _address(weight, at), step
                    _add_to_four_rows(memory, of_rows + four + (count, _address(out, to), out_step))
                for row in range(fours, rows):
                    at, to = (head * rows + row) * keys + key, (head * rows + row) * dim
                    of_rows = _address(weight, at), step
                    _add_to_a_row(memory, of_rows + four + (count, _address(out, to), out_step))
    for head in range(kv_heads):
        for row in range(rows):
            row_weights, total = weight[head, row], out[head, row]
            _add_values(row_weights, memory, offsets, head * head_stride, whole, 0, total[:columns])
            _add_values(row_weights, memory, offsets, head * head_stride, 0, columns, total)


@compiled(_AS_WRITTEN)
def sums(weight: Array, memory: Array, offsets: Array, head_stride: int, out: Array) -> None:
    """Write `weight @ v` to `out` [kv_heads, rows, dim]; weight is [kv_heads, rows, keys], and v is in memory
    as the keys of `products` are.
    """
    out[:] = f32(0)
    _add_sums(weight, memory, offsets, head_stride, out)


@part_of_loop(_AS_WRITTEN)
def _are_safe(total: Array, out: Array, least_total: float, least_sum: float) -> bool:
    """Whether the sums of a head, of weights [rows] and of values [rows, dim], lost nothing to overflow or
    underflow, nor met NaN; `flash.cpu.job.SAFE` says why.
    """
    rows, dim = out.shape
    for row in range(rows):
        if not least_total <= total[row] < _INFINITY:
            return False
        largest = f32(0)
        for n in range(dim):
            size = abs(out[row, n])
            if not size < _INFINITY:
                return False
            largest = max(largest, size)
        if 0 < largest < least_sum:
            return False
    return True


@part_of_loop(_AS_WRITTEN)
def _are_finite(x: Array) -> bool:
    """Whether all numbers of x [rows, dim] are finite."""
    rows, dim = x.shape
    for row in range(rows):
        for n in range(dim):
            if not abs(x[row, n]) < _INFINITY:
                return False
    return True


@part_of_loop(_AS_WRITTEN)
def _waited(leads: bool, bell: Array, heard: int, progress: Array, parts: int, looks: int) -> bool:
    """Wait for at most `looks` looks: the leader until all parts are done, helpers until the bell rings or
    the leader sleeps. Return whether all parts are done, if it is the leader.
    """
    of_bell, done, asleep = _address(bell, 0), _address(progress, 1), _address(progress, 2)
    for look in range(looks):
        if leads and count_at(done) >= parts:
            return True
        if not leads and (count_at(of_bell) != heard or count_at(asleep)):
            return False
        if look % _LOOKS_TO_YIELD == 0:
            _yield_core()
    if leads:
        counted(asleep)
    return False


@compiled(_AS_WRITTEN)
def attend(
    leads: bool,
    bell: Array,
    progress: Array,
    looks: int,
    together: int,
    q: Array,
    k: Array,
    k_offsets: Array,
    k_strides: tuple[int, int],
    v: Array,
    v_offsets: Array,
    v_strides: tuple[int, int],
    total: Array,
    out: Array,
    is_safe: Array,
    least_total: float,
    least_sum: float,
) -> bool:
    """Do `products`, `weights` and `sums` of parts that no other thread has begun, each of them `together`
    heads, one range of keys after the other: add the weights to `total` [batch, kv_heads, rows], and write
    the sums divided by it to `out` [batch, kv_heads, rows, dim]. Key n of head h of item b begins at
    k[k_offsets[n] + b * k_strides[0] + h * k_strides[1]]; values likewise. `is_safe` [batch, kv_heads] says
    which heads have safe sums; unsafe sums are not divided.

    `progress` [3] counts the parts that threads have begun, those that they have done, and whether the leader
    sleeps. The leader adds 1 to `bell` [1] first. In the end threads wait, for at most `looks` looks, and
    return a result, as in `_waited`.
    """
    batch, kv_heads, rows, _ = out.shape
    of_item = (kv_heads + together - 1) // together
    parts, keys = batch * of_item, len(k_offsets)
    begun, done = _address(progress, 0), _address(progress, 1)
    if leads:
        counted(_address(bell, 0))
    scores = np.empty(together * rows * min(keys, _KEYS_AT_ONCE), f32)
    heard = count_at(_address(bell, 0))
    part = counted(begun)
    while part < parts:
        b, head = part // of_item, part % of_item * together
        end = min(head + together, kv_heads)
        local_k = k[b * k_strides[0] + head * k_strides[1] :]
        local_v = v[b * v_strides[0] + head * v_strides[1] :]
        local_q, local_total, local_out = q[b, head:end], total[b, head:end], out[b, head:end]
        totals = local_total.reshape(local_total.size)
        local_out[:] = f32(0)
        for first in range(0, keys, _KEYS_AT_ONCE):
            last = min(first + _KEYS_AT_ONCE, keys)
            count = last - first
            score = scores[: len(totals) * count].reshape(len(totals), count)
            by_head = score.reshape(end - head, rows, count)
            products(local_q, local_k, k_offsets[first:last], k_strides[1], by_head)
            weights(score, totals)
            _add_sums(by_head, local_v, v_offsets[first:last], v_strides[1], local_out)
        for n in range(end - head):
            safe = _are_finite(local_q[n]) and _are_safe(local_total[n], local_out[n], least_total, least_sum)
            is_safe[b, head + n] = safe
            for row in range(rows if safe else 0):
                local_out[n, row] /= local_total[n, row]
        # Before the part is counted: when all are, the leader may ring for the next call.
        heard = count_at(_address(bell, 0))
        counted(done)
        part = counted(begun)
    return _waited(leads, bell, heard, progress, parts, looks)
