"""The loops of the `numba` backend, which Numba compiles for the CPU when they are first called.

Types of 16 bits are f32 in registers only: bf16 comes as uint16, and f16 as int16. The order of each sum
follows from the numbers of rows and columns alone, and from how many numbers the CPU adds at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Array = NDArray[Any]
_Loop = TypeVar("_Loop", bound=Callable[..., Any])
f32: Final = np.float32

_TOGETHER: Final = 4  # keys whose products are summed at once, so that few loads wait for few additions

# exp(x) is 0 below the first and infinite above the second; between them 2^n has an n of two exponents of f32.
_LEAST: Final = f32(-104.0)
_MOST: Final = f32(89.0)
_LOG2_E: Final = f32(1.4426950408889634)
_TO_INTEGER: Final = f32(1.5 * 2**23)  # x + this - this is x, rounded to an integer
_BITS_OF_ZERO: Final = np.uint32(0x4B400000)  # of 0 + _TO_INTEGER
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
_BIAS: Final = np.int32(127)
_MANTISSA_BITS: Final = np.int32(23)


def _compiled(loop: _Loop) -> _Loop:
    """The loop, compiled, with sums in the order that is fastest on the CPU."""
    # NaN and infinity count: "nnan" and "ninf" are not among these.
    found: _Loop = numba.njit(loop, nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
    return found


def _in_order(loop: _Loop) -> _Loop:
    """The loop, compiled, with each operation as it is written, but for fused multiply-adds."""
    found: _Loop = numba.njit(loop, nogil=True, cache=True, fastmath={"contract"})
    return found


def _cast(to: Any, of: Any, made: Callable[[], Any]) -> Any:
    """A function that takes the bits of a number of type `of` for one of type `to`."""

    def typed(context: Any, x: Any) -> Any:  # noqa: ARG001  # what Numba calls it with
        return to(of), lambda _, builder, __, given: builder.bitcast(given[0], made())

    return intrinsic(typed)


_float_of = _cast(types.float32, types.uint32, ir.FloatType)
_bits_of = _cast(types.uint32, types.float32, lambda: ir.IntType(32))


def _widened(x: Any) -> Any:
    """The number of an f32, of the bits of a bf16 as uint16, or of those of an f16 as int16, as f32."""
    raise TypeError(f"only compiled loops widen numbers, got {x!r}")


def _of_f32(x: Any) -> Any:
    return x


def _of_bf16(x: Any) -> Any:
    return _float_of(np.uint32(x) << np.uint32(16))


def _of_f16(x: Any) -> Any:
    # Shifted left by 13, the bits are those of an f32 that is 2^-112 as large, but for infinity and NaN.
    bits = np.uint32(np.int32(x) << np.int32(13)) & np.uint32(0x8FFFE000)
    finite = _float_of(bits) * f32(2.0**112)
    return _float_of(bits | np.uint32(0x7F800000)) if (x & 0x7C00) == 0x7C00 else finite


def _widening(x: Any) -> Any:
    """What `_widened` is for numbers of type x."""
    return {types.float32: _of_f32, types.uint16: _of_bf16, types.int16: _of_f16}[x]


overload(_widened, inline="always")(_widening)


@_in_order
def _exp(x: Any) -> Any:
    """e^x within 1.4 units in the last place; NaN of NaN."""
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    shifted = x * _LOG2_E + _TO_INTEGER
    n = shifted - _TO_INTEGER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    p = p * (r * r) + r + f32(1)
    power = np.int32(_bits_of(shifted) - _BITS_OF_ZERO)
    half = power >> np.int32(1)  # 2^n itself may be no f32
    other = power - half
    p = p * _float_of(np.uint32((half + _BIAS) << _MANTISSA_BITS))
    return p * _float_of(np.uint32((other + _BIAS) << _MANTISSA_BITS))


@_compiled
def exponentials(score: Array, total: Array) -> None:
    """Write the exponentials of `score` [rows, keys] over it, and add their sums to `total` [rows]."""
    rows, keys = score.shape
    for row in range(rows):
        own = score[row]
        added = f32(0)
        for key in range(keys):
            weight = _exp(own[key])
            own[key] = weight
            added += weight
        total[row] += added


# LLVM makes vectors of the inner loops only if these have `dim` turns and read slices of `dim` numbers.


@_compiled
def _four_products(q: Array, memory: Array, a: int, b: int, c: int, d: int) -> tuple[Any, Any, Any, Any]:
    """The products of a row with the keys at four places."""
    dim = len(q)
    key_a, key_b, key_c, key_d = (
        memory[a : a + dim],
        memory[b : b + dim],
        memory[c : c + dim],
        memory[d : d + dim],
    )
    of_a = of_b = of_c = of_d = f32(0)
    for n in range(dim):
        x = q[n]
        of_a += x * _widened(key_a[n])
        of_b += x * _widened(key_b[n])
        of_c += x * _widened(key_c[n])
        of_d += x * _widened(key_d[n])
    return of_a, of_b, of_c, of_d


@_compiled
def _product(q: Array, memory: Array, at: int) -> Any:
    """The product of a row with the key at a place."""
    dim = len(q)
    key, found = memory[at : at + dim], f32(0)
    for n in range(dim):
        found += q[n] * _widened(key[n])
    return found


@_compiled
def products(q: Array, memory: Array, places: Array, apart: int, out: Array) -> None:
    """Write `q @ k^T` to `out` [kv_heads, rows, keys]; q is [kv_heads, rows, dim], and key n of head h begins
    at memory[places[n] + h * apart].
    """
    kv_heads, rows, _ = q.shape
    whole = len(places) // _TOGETHER * _TOGETHER
    for head in range(kv_heads):
        first = head * apart
        for key in range(0, whole, _TOGETHER):
            a, b, c, d = (
                first + places[key],
                first + places[key + 1],
                first + places[key + 2],
                first + places[key + 3],
            )
            for row in range(rows):
                score = out[head, row]
                of_a, of_b, of_c, of_d = _four_products(q[head, row], memory, a, b, c, d)
                score[key], score[key + 1], score[key + 2], score[key + 3] = of_a, of_b, of_c, of_d
        for key in range(whole, len(places)):
            for row in range(rows):
                out[head, row, key] = _product(q[head, row], memory, first + places[key])


@_in_order
def _add(total: Array, weight: Any, memory: Array, at: int) -> None:
    """Add the value at a place times its weight to a sum. A weight of 0 adds nothing, whatever the value is."""
    dim = len(total)
    value = memory[at : at + dim]
    if weight != 0:
        for n in range(dim):
            total[n] += weight * _widened(value[n])


@_in_order
def _add_four(total: Array, weight: Array, key: int, memory: Array, a: int, b: int, c: int, d: int) -> None:
    """Add the values at four places times their weights, from that of `key` on, to a sum."""
    dim = len(total)
    of_a, of_b, of_c, of_d = weight[key], weight[key + 1], weight[key + 2], weight[key + 3]
    if of_a == 0 or of_b == 0 or of_c == 0 or of_d == 0:
        _add(total, of_a, memory, a)
        _add(total, of_b, memory, b)
        _add(total, of_c, memory, c)
        _add(total, of_d, memory, d)
        return
    value_a, value_b = memory[a : a + dim], memory[b : b + dim]
    value_c, value_d = memory[c : c + dim], memory[d : d + dim]
    for n in range(dim):
        first = of_a * _widened(value_a[n]) + of_b * _widened(value_b[n])
        total[n] += first + (of_c * _widened(value_c[n]) + of_d * _widened(value_d[n]))


@_in_order
def sums(weight: Array, memory: Array, places: Array, apart: int, out: Array) -> None:
    """Write `weight @ v` to `out` [kv_heads, rows, dim]; weight is [kv_heads, rows, keys], and v lies as keys
    of `products` do. A value of weight 0 is not read.
    """
    kv_heads, rows, _ = out.shape
    whole = len(places) // _TOGETHER * _TOGETHER
    for head in range(kv_heads):
        first = head * apart
        out[head] = f32(0)
        for key in range(0, whole, _TOGETHER):
            a, b, c, d = (
                first + places[key],
                first + places[key + 1],
                first + places[key + 2],
                first + places[key + 3],
            )
            for row in range(rows):
                _add_four(out[head, row], weight[head, row], key, memory, a, b, c, d)
        for key in range(whole, len(places)):
            for row in range(rows):
                _add(out[head, row], weight[head, row, key], memory, first + places[key])
