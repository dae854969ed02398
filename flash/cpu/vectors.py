"""Functions of compiled loops that are vectors of LLVM, written as such: Numba knows scalars only, of which
LLVM makes vectors as it sees fit.

Rows are LANES numbers at a time, and HALF at their end, whatever the registers of the CPU are, so that the
order of a sum is that of these lanes. Keys and values of 16 bits are f32 in registers only: bf16 comes as
uint16, and f16 as int16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

LANES: Final = 16
HALF: Final = LANES // 2
KEYS: Final = 4  # whose products, or values, are computed together

_F32: Final = ir.FloatType()
_I16: Final = ir.IntType(16)
_I32: Final = ir.IntType(32)
_I64: Final = ir.IntType(64)
_F32_BYTES: Final = 4
# A product and a sum may be one operation. The order of sums is as written.
_FUSED: Final = ("contract",)

# Shifted left by 13, the bits of an f16 are those of an f32 that is 2^-112 as large, but for infinity and
# NaN.
_F16_SHIFT: Final = 13
_F16_BITS: Final = 0x8FFFE000
_F16_EXPONENT: Final = 0x0F800000  # of infinity and NaN
_F16_UNIT: Final = 2.0**112
_WILD: Final = 0x7F800000


@intrinsic  # type: ignore[untyped-decorator]
def float_of(context: Any, x: Any) -> Any:  # noqa: ARG001  # what Numba calls it with
    """The f32 whose bits are the i32 `x`."""
    return types.float32(types.uint32), lambda _, builder, __, of: builder.bitcast(of[0], _F32)


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(context: Any, x: Any) -> Any:  # noqa: ARG001
    """The bits of the f32 `x` as an i32."""
    return types.uint32(types.float32), lambda _, builder, __, of: builder.bitcast(of[0], _I32)


@intrinsic  # type: ignore[untyped-decorator]
def in_widest_vectors(context: Any) -> Any:  # noqa: ARG001
    """Let LLVM use vectors of 512 bits in the function that is compiled, where the CPU has them. By default
    LLVM does not, which is better for functions with few such vectors.
    """

    def mark(target: Any, builder: Any, _: object, __: object) -> Any:
        # llvmlite's own `add` knows no attributes with values.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return target.get_dummy_value()

    return types.void(), mark


@intrinsic  # type: ignore[untyped-decorator]
def counted(context: Any, address: Any) -> Any:  # noqa: ARG001
    """Add 1 atomically to the int64 at an address, a counter of several threads, and return its former value.
    What a thread has written before it counted, another reads that counts, or reads the count by `count_at`,
    afterwards.
    """

    def add(_: object, builder: Any, __: object, arguments: Sequence[Any]) -> Any:
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "acq_rel")

    return types.int64(types.uint64), add


@intrinsic  # type: ignore[untyped-decorator]
def count_at(context: Any, address: Any) -> Any:  # noqa: ARG001
    """The value of the int64 at an address, a counter of several threads."""

    def load(_: object, builder: Any, __: object, arguments: Sequence[Any]) -> Any:
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(types.uint64), load


def widened(x: Any) -> Any:
    """The number of an f32, of the bits of a bf16 as uint16, or of those of an f16 as int16, as f32."""
    raise TypeError(f"only compiled loops widen numbers, got {x!r}")


def _of_f32(x: Any) -> Any:
    return x


def _of_bf16(x: Any) -> Any:
    return float_of(np.uint32(x) << np.uint32(16))


def _of_f16(x: Any) -> Any:
    bits = np.uint32(np.int32(x) << np.int32(_F16_SHIFT)) & np.uint32(_F16_BITS)
    finite = float_of(bits) * np.float32(_F16_UNIT)
    is_wild = bits & np.uint32(_F16_EXPONENT) == np.uint32(_F16_EXPONENT)
    return float_of(bits | np.uint32(_WILD)) if is_wild else finite


@overload(widened)  # type: ignore[untyped-decorator]
def _widening(x: Any) -> Any:
    """The implementation of `widened` for numbers of type `x`."""
    return {types.float32: _of_f32, types.uint16: _of_bf16, types.int16: _of_f16}[x]


def products_of(rows: int) -> Any:
    """A function of `rows` rows and four keys. It writes the products of their first columns: those of a row
    side by side. Its arguments are an array of the keys' type, and a tuple of uint64: the address of the
    first row, the bytes from a row to the next, the addresses of the keys, the number of columns, a multiple
    of HALF, the address of the first product, and the bytes from those of a row to those of the next.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def products(context: Any, memory: Any, operands: Any) -> Any:  # noqa: ARG001
        def written(target: Any, builder: Any, _: object, arguments: Sequence[Any]) -> Any:
            q, step, *keys, columns, out, out_step = cgutils.unpack_tuple(builder, arguments[1], 5 + KEYS)
            at_rows = _addresses(builder, q, step, rows)
            zeros = ir.Constant(_lanes_of(_F32), [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zeros) for _ in keys] for _ in at_rows]
            for column, lanes in _vectors(builder, columns):
                of_keys = [_loaded(builder, memory.dtype, at, column, lanes) for at in keys]
                for at, of_row in zip(at_rows, sums, strict=True):
                    x = _loaded(builder, types.float32, at, column, lanes)
                    for total, y in zip(of_row, of_keys, strict=True):
                        builder.store(_plus(builder, builder.load(total), _times(builder, x, y)), total)
            for at, of_row in zip(_addresses(builder, out, out_step, rows), sums, strict=True):
                four = _sums_of_lanes(builder, [builder.load(total) for total in of_row])
                pointer = builder.inttoptr(at, ir.VectorType(_F32, KEYS).as_pointer())
                builder.store(four, pointer, align=_F32_BYTES)
            return target.get_dummy_value()

        return types.void(memory, operands), written

    return products


def addition_to(rows: int) -> Any:
    """A function of `rows` rows of weights and four values. It adds the first columns of the values times
    the weights to rows. Its arguments are those of a function of `products_of`: weights for rows, values for
    keys, and rows for products.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def add(context: Any, memory: Any, operands: Any) -> Any:  # noqa: ARG001
        def written(target: Any, builder: Any, _: object, arguments: Sequence[Any]) -> Any:
            weights, step, *values, columns, out, out_step = cgutils.unpack_tuple(
                builder, arguments[1], 5 + KEYS
            )
            at_weights = _addresses(builder, weights, step, rows)
            factors = [[_in_all_lanes(builder, at, n) for n in range(KEYS)] for at in at_weights]
            at_rows = _addresses(builder, out, out_step, rows)
            for column, lanes in _vectors(builder, columns):
                of_values = [_loaded(builder, memory.dtype, at, column, lanes) for at in values]
                for at, row_factors in zip(at_rows, factors, strict=True):
                    a, b, c, d = (_times(builder, x, y) for x, y in zip(row_factors, of_values, strict=True))
                    added = _plus(builder, _plus(builder, a, b), _plus(builder, c, d))
                    total = _plus(builder, _loaded(builder, types.float32, at, column, lanes), added)
                    pointer = _pointer(builder, _F32, _F32_BYTES, at, column, lanes)
                    builder.store(_shuffled(builder, total, total, range(lanes)), pointer, align=_F32_BYTES)
            return target.get_dummy_value()

        return types.void(memory, operands), written

    return add


# ---------------------------------------------------------------------------------------------


def _lanes_of(element: Any) -> Any:
    return ir.VectorType(element, LANES)


def _each(element: Any, value: float) -> Any:
    return ir.Constant(_lanes_of(element), [value] * LANES)


def _addresses(builder: Any, first: Any, step: Any, count: int) -> list[Any]:
    """`count` addresses from `first` on, `step` bytes apart."""
    addresses = [first]
    for _ in range(count - 1):
        addresses.append(builder.add(addresses[-1], step))
    return addresses


def _vectors(builder: Any, columns: Any) -> Iterator[tuple[Any, int]]:
    """The first column and the number of columns of each vector of a row: LANES columns at a time in a loop,
    and then HALF if as many are left. The code that a caller emits for an item is inside this loop, or inside
    the branch for the rest.
    """
    lanes = ir.Constant(_I64, LANES)
    with cgutils.for_range(builder, builder.udiv(columns, lanes)) as loop:
        yield builder.mul(loop.index, lanes), LANES
    left = builder.urem(columns, lanes)
    with builder.if_then(builder.icmp_unsigned("!=", left, ir.Constant(_I64, 0))):
        yield builder.sub(columns, left), HALF


def _pointer(builder: Any, element: Any, nbytes: int, address: Any, column: Any, lanes: int) -> Any:
    """The pointer to a vector of `lanes` elements of a row, from a column on."""
    offset = builder.mul(column, ir.Constant(_I64, nbytes))
    return builder.inttoptr(builder.add(address, offset), ir.VectorType(element, lanes).as_pointer())


def _loaded(builder: Any, kind: Any, address: Any, column: Any, lanes: int) -> Any:
    """`lanes` numbers, of a type of Numba, of a row from a column on, as f32; the other lanes of the vector
    are 0.
    """
    element, nbytes = (_F32, _F32_BYTES) if kind == types.float32 else (_I16, 2)
    raw = builder.load(_pointer(builder, element, nbytes, address, column, lanes), align=nbytes)
    if lanes < LANES:
        zeros = ir.Constant(raw.type, [0] * lanes)
        raw = _shuffled(builder, raw, zeros, range(LANES))
    if kind == types.float32:
        return raw
    if kind == types.uint16:
        bits = builder.shl(builder.zext(raw, _lanes_of(_I32)), _each(_I32, 16))
        return builder.bitcast(bits, _lanes_of(_F32))
    shifted = builder.shl(builder.sext(raw, _lanes_of(_I32)), _each(_I32, _F16_SHIFT))
    bits = builder.and_(shifted, _each(_I32, _F16_BITS))
    finite = builder.fmul(builder.bitcast(bits, _lanes_of(_F32)), _each(_F32, _F16_UNIT))
    exponent = _each(_I32, _F16_EXPONENT)
    is_wild = builder.icmp_unsigned("==", builder.and_(bits, exponent), exponent)
    wild = builder.bitcast(builder.or_(bits, _each(_I32, _WILD)), _lanes_of(_F32))
    return builder.select(is_wild, wild, finite)


def _in_all_lanes(builder: Any, address: Any, n: int) -> Any:
    """Number n from an address on, in all lanes of a vector."""
    at = builder.add(address, ir.Constant(_I64, n * _F32_BYTES))
    number = builder.load(builder.inttoptr(at, _F32.as_pointer()), align=_F32_BYTES)
    one = builder.insert_element(ir.Constant(_lanes_of(_F32), ir.Undefined), number, ir.Constant(_I32, 0))
    return _shuffled(builder, one, one, [0] * LANES)


def _plus(builder: Any, x: Any, y: Any) -> Any:
    return builder.fadd(x, y, flags=_FUSED)


def _times(builder: Any, x: Any, y: Any) -> Any:
    return builder.fmul(x, y, flags=_FUSED)


def _shuffled(builder: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    """A vector of the lanes `lanes` of two vectors; lanes of y are numbered after those of x."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))


def _sums_of_lanes(builder: Any, four: list[Any]) -> Any:
    """A vector with the sum of the lanes of each of four vectors: halves are added to each other."""

    def added(x: Any, y: Any, *lanes: Sequence[int]) -> Any:
        low, high = (_shuffled(builder, x, y, some) for some in lanes)
        return builder.fadd(low, high)

    count = LANES
    while count > KEYS:
        half, of_all = count // 2, range(count)
        four = [added(x, x, of_all[:half], of_all[half:]) for x in four]
        count = half
    a, b, c, d = four
    of_ab, of_cd = (added(x, y, (0, 4, 1, 5), (2, 6, 3, 7)) for x, y in ((a, b), (c, d)))
    return added(of_ab, of_cd, (0, 1, 4, 5), (2, 3, 6, 7))
