"""The loops of the `compiled` backend, which Numba compiles for the CPU when they are first called.

Keys and values of 16 bits are f32 in registers only: bf16 comes as uint16, and f16 as int16. The order of
each sum follows from the numbers of rows, keys and columns alone, and from how many numbers the CPU adds at
once. Keys and values begin anywhere in a dense memory, so that those in pages are read where they lie, and
their sums are those of contiguous ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from flash.cpu.compiler import compiled, part_of_loop

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
_TO_INTEGER: Final = f32(
    1.5 * 2**23 + 32
)  # x + this has the bits of n + 32 at its end, and x + this - this is n
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


@intrinsic  # type: ignore[untyped-decorator]
def _float_of(context: Any, x: Any) -> Any:  # noqa: ARG001  # what Numba calls it with
    """The f32 of these bits."""
    return types.float32(types.uint32), lambda _, builder, __, of: builder.bitcast(of[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def _bits_of(context: Any, x: Any) -> Any:  # noqa: ARG001
    """The bits of an f32."""
    return types.uint32(types.float32), lambda _, builder, __, of: builder.bitcast(of[0], ir.IntType(32))


def _widened(x: Any) -> Any:
    """The number with the bits of a bf16, as uint16, or of an f16, as int16, as f32."""
    raise TypeError(f"only compiled loops widen numbers, got {x!r}")


def _of_bf16(x: Any) -> Any:
    return _float_of(np.uint32(x) << np.uint32(16))


def _of_f16(x: Any) -> Any:
    # Shifted left by 13, the bits are those of an f32 that is 2^-112 as large, but for infinity and NaN.
    bits = np.uint32(np.int32(x) << np.int32(13)) & np.uint32(0x8FFFE000)
    finite = _float_of(bits) * f32(2.0**112)
    wild = _float_of(bits | np.uint32(0x7F800000))
    return wild if (bits & np.uint32(0x0F800000)) == np.uint32(0x0F800000) else finite


@overload(_widened)  # type: ignore[untyped-decorator]
def _widening(x: Any) -> Any:
    """What `_widened` is for numbers of type x."""
    return {types.uint16: _of_bf16, types.int16: _of_f16}[x]


@intrinsic  # type: ignore[untyped-decorator]
def _in_widest_vectors(context: Any) -> Any:  # noqa: ARG001
    """Have LLVM make vectors of 512 bits in this function where the CPU has them. By itself it does not, for
    the sake of code that has few of them.
    """

    def mark(target: Any, builder: Any, _: object, __: object) -> Any:
        # llvmlite's own `add` knows no attributes with values.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return target.get_dummy_value()

    return types.void(), mark


@part_of_loop(_AS_WRITTEN)
def _weight(score: Any) -> Any:
    """e^score within 1.4 units in the last place; 0 below _LEAST, infinity above _MOST, NaN of NaN."""
    # Without the bound, numbers on the way could be subnormal, which take a CPU a hundred times as long.
    x = _LEAST if score < _LEAST else score
    shifted = x * _LOG2_E + _TO_INTEGER
    n = shifted - _TO_INTEGER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    p = p * (r * r) + r + f32(1)
    p = _float_of(_bits_of(p) + (_bits_of(shifted) << _MANTISSA_BITS)) * _AHEAD
    p = f32(0) if score < _LEAST else p
    return p if score <= _MOST else score * _INFINITY


@compiled(_ANY_ORDER)
def weights(score: Array, total: Array) -> None:
    """Write the exponentials of `score` [rows, keys] over it, and add their sums to `total` [rows]."""
    _in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        own = score[row]
        added = f32(0)
        for key in range(keys):
            weight = _weight(own[key])
            own[key] = weight
            added += weight
        total[row] += added


@compiled(_ANY_ORDER)
def weights_of_seen(score: Array, hidden: Array, total: Array) -> None:
    """As `weights`; what is `hidden` [rows, keys] has weight 0, whatever its score is."""
    _in_widest_vectors()
    rows, keys = score.shape
    for row in range(rows):
        own, unseen = score[row], hidden[row]
        added = f32(0)
        for key in range(keys):
            weight = f32(0) if unseen[key] else _weight(own[key])
            own[key] = weight
            added += weight
        total[row] += added


# LLVM makes vectors of the inner loops only if these have `dim` turns and read slices of `dim` numbers.


@part_of_loop(_ANY_ORDER)
def _four_rows(q: Array, memory: Array, a: int, b: int, dim: int) -> tuple[Any, ...]:
    """The products of the four rows of q with the key at each of two places."""
    row_0, row_1, row_2, row_3 = q[0, :dim], q[1, :dim], q[2, :dim], q[3, :dim]
    key_a, key_b = memory[a : a + dim], memory[b : b + dim]
    a_0 = a_1 = a_2 = a_3 = b_0 = b_1 = b_2 = b_3 = f32(0)
    for n in range(dim):
        of_a, of_b = _widened(key_a[n]), _widened(key_b[n])
        a_0 += row_0[n] * of_a
        a_1 += row_1[n] * of_a
        a_2 += row_2[n] * of_a
        a_3 += row_3[n] * of_a
        b_0 += row_0[n] * of_b
        b_1 += row_1[n] * of_b
        b_2 += row_2[n] * of_b
        b_3 += row_3[n] * of_b
    return a_0, a_1, a_2, a_3, b_0, b_1, b_2, b_3


@part_of_loop(_ANY_ORDER)
def _four_keys(q: Array, memory: Array, a: int, b: int, c: int, d: int, dim: int) -> tuple[Any, ...]:
    """The products of a row with the keys at four places."""
    key_a, key_b = memory[a : a + dim], memory[b : b + dim]
    key_c, key_d = memory[c : c + dim], memory[d : d + dim]
    of_a = of_b = of_c = of_d = f32(0)
    for n in range(dim):
        x = q[n]
        of_a += x * _widened(key_a[n])
        of_b += x * _widened(key_b[n])
        of_c += x * _widened(key_c[n])
        of_d += x * _widened(key_d[n])
    return of_a, of_b, of_c, of_d


@part_of_loop(_ANY_ORDER)
def _product(q: Array, memory: Array, at: int) -> Any:
    """The product of a row with the key at a place."""
    dim = len(q)
    key, found = memory[at : at + dim], f32(0)
    for n in range(dim):
        found += q[n] * _widened(key[n])
    return found


@compiled(_ANY_ORDER)
def products(q: Array, memory: Array, places: Array, apart: int, out: Array) -> None:
    """Write `q @ k^T` to `out` [kv_heads, rows, keys]; q is [kv_heads, rows, dim], and key n of head h begins
    at memory[places[n] + h * apart].
    """
    kv_heads, rows, dim = q.shape
    fours = rows // 4 * 4
    whole = len(places) // 4 * 4
    for head in range(kv_heads):
        first = head * apart
        for key in range(0, whole, 4):
            a, b = first + places[key], first + places[key + 1]
            c, d = first + places[key + 2], first + places[key + 3]
            for row in range(0, fours, 4):
                some, score = q[head, row : row + 4], out[head, row : row + 4]
                for n, one, other in ((key, a, b), (key + 2, c, d)):
                    a_0, a_1, a_2, a_3, b_0, b_1, b_2, b_3 = _four_rows(some, memory, one, other, dim)
                    score[0, n], score[1, n], score[2, n], score[3, n] = a_0, a_1, a_2, a_3
                    n += 1
                    score[0, n], score[1, n], score[2, n], score[3, n] = b_0, b_1, b_2, b_3
            for row in range(fours, rows):
                own = out[head, row]
                of_a, of_b, of_c, of_d = _four_keys(q[head, row], memory, a, b, c, d, dim)
                own[key], own[key + 1], own[key + 2], own[key + 3] = of_a, of_b, of_c, of_d
        for key in range(whole, len(places)):
            for row in range(rows):
                out[head, row, key] = _product(q[head, row], memory, first + places[key])


@part_of_loop(_AS_WRITTEN)
def _add_to_four_rows(
    total: Array, weights: tuple[Any, ...], memory: Array, places: tuple[int, ...], dim: int
) -> None:
    """Add to the four rows of `total` the values at four places times the weights of each row."""
    a, b, c, d = places
    value_a, value_b = memory[a : a + dim], memory[b : b + dim]
    value_c, value_d = memory[c : c + dim], memory[d : d + dim]
    row_0, row_1, row_2, row_3 = total[0, :dim], total[1, :dim], total[2, :dim], total[3, :dim]
    (a_0, b_0, c_0, d_0), (a_1, b_1, c_1, d_1), (a_2, b_2, c_2, d_2), (a_3, b_3, c_3, d_3) = weights
    for n in range(dim):
        of_a, of_b = _widened(value_a[n]), _widened(value_b[n])
        of_c, of_d = _widened(value_c[n]), _widened(value_d[n])
        row_0[n] += (a_0 * of_a + b_0 * of_b) + (c_0 * of_c + d_0 * of_d)
        row_1[n] += (a_1 * of_a + b_1 * of_b) + (c_1 * of_c + d_1 * of_d)
        row_2[n] += (a_2 * of_a + b_2 * of_b) + (c_2 * of_c + d_2 * of_d)
        row_3[n] += (a_3 * of_a + b_3 * of_b) + (c_3 * of_c + d_3 * of_d)


@part_of_loop(_AS_WRITTEN)
def _add_four(total: Array, weights: tuple[Any, ...], memory: Array, places: tuple[int, ...]) -> None:
    """Add to a row the values at four places times their weights."""
    dim = len(total)
    a, b, c, d = places
    value_a, value_b = memory[a : a + dim], memory[b : b + dim]
    value_c, value_d = memory[c : c + dim], memory[d : d + dim]
    of_a, of_b, of_c, of_d = weights
    for n in range(dim):
        two = of_a * _widened(value_a[n]) + of_b * _widened(value_b[n])
        total[n] += two + (of_c * _widened(value_c[n]) + of_d * _widened(value_d[n]))


@part_of_loop(_AS_WRITTEN)
def _add(total: Array, weight: Any, memory: Array, at: int) -> None:
    """Add to a row the value at a place times its weight."""
    dim = len(total)
    value = memory[at : at + dim]
    for n in range(dim):
        total[n] += weight * _widened(value[n])


@part_of_loop(_AS_WRITTEN)
def _at(weight: Array, key: int) -> tuple[Any, ...]:
    """Four weights of a row from `key` on."""
    return weight[key], weight[key + 1], weight[key + 2], weight[key + 3]


@compiled(_AS_WRITTEN)
def sums(weight: Array, memory: Array, places: Array, apart: int, out: Array) -> None:
    """Write `weight @ v` to `out` [kv_heads, rows, dim]; weight is [kv_heads, rows, keys], and v lies as keys
    of `products` do.
    """
    kv_heads, rows, dim = out.shape
    fours = rows // 4 * 4
    whole = len(places) // 4 * 4
    for head in range(kv_heads):
        first = head * apart
        out[head] = f32(0)
        for key in range(0, whole, 4):
            four = (
                first + places[key],
                first + places[key + 1],
                first + places[key + 2],
                first + places[key + 3],
            )
            for row in range(0, fours, 4):
                own = weight[head, row : row + 4]
                weights = _at(own[0], key), _at(own[1], key), _at(own[2], key), _at(own[3], key)
                _add_to_four_rows(out[head, row : row + 4], weights, memory, four, dim)
            for row in range(fours, rows):
                _add_four(out[head, row], _at(weight[head, row], key), memory, four)
        for key in range(whole, len(places)):
            for row in range(rows):
                _add(out[head, row], weight[head, row, key], memory, first + places[key])
