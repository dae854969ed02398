"""The operands of a kernel body: values, loop variables and pointers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeGuard, overload

from ptxgen import ir
from ptxgen.dsl.foreign import Foreign
from ptxgen.dsl.operators import InPlace, Operator, Reflected
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.isa.spec import Modifier
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, b16, b32, bf16, bf16x2, f16, f16x2, f32, f64, pred, s32, s64, u32, u64

_BITS: Final = {f16: b16, bf16: b16, f16x2: b32, bf16x2: b32}
_VECTORS: Final = (2, 4)  # elements of a vector (PTX ISA, "ld")
_MAX_OFFSET = (1 << 31) - 1  # the offset of an address is a 32-bit integer (PTX ISA, "Operands")


class Emitter(Protocol):
    """The part of a kernel builder by which values emit instructions."""

    name: str

    def emit(
        self,
        name: Operator,
        args: tuple[Scalar, ...],
        modifiers: Mapping[str, Modifier] = ...,
        *,
        into: Var | None = None,
    ) -> Value:
        """Append an instruction of the row `name`; the result, in `into` or in a new register."""

    @overload
    def load(self, at: Pointer) -> Value: ...
    @overload
    def load(self, at: Pointer, count: int) -> Any: ...
    def load(self, at: Pointer, count: int = 1) -> Any:
        """Load the element at a pointer, or a tuple of `count` elements."""

    def store(self, at: Pointer, values: Scalar | Sequence[Scalar]) -> None:
        """Write one element at a pointer, or 2 or 4 consecutive elements."""

    def divided(self, a: Value, by: Scalar) -> Value:
        """Emit the quotient of two integers, rounded towards zero: a // by."""

    def remainder(self, a: Value, by: Scalar) -> Value:
        """Emit the remainder of two integers, with the sign of a: a % by."""

    def ordered(self, a: Value, cmp: str, b: Scalar) -> Value:
        """Whether two numbers compare as `cmp` says: lt, le, gt or ge."""

    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None:
        """Append one instruction to the kernel without checks of its operands."""

    def fresh(self, type: ScalarType) -> Value:
        """A value of `type` in a new register, which no instruction has written yet."""


class Value(Reflected, Foreign):
    """One scalar per thread, in a register that is written once.

    Operators are explicitly rounded (`add.rn`, `mul.rn`, `div.rn`), so they mean the same on every
    backend; a fused multiply-add is written `k.fma`. `/` is for f32 and f64; `//` and `%` are for
    integers and round towards zero, as in C. An expression emits instructions each time Python
    evaluates it, so give a name to a result that is used twice.
    """

    __slots__ = ("k", "reg", "type")

    type: ScalarType

    def __init__(self, k: Emitter, reg: ir.Reg, type: ScalarType) -> None:
        self.k = k
        self.reg = reg
        self.type = type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reg.name}: {self.type})"

    __hash__ = object.__hash__

    def as_(self, type: ScalarType) -> Value:
        """The value with the same bits as another type of the same size.

        It emits a `mov` only if the register class changes. Raises `TypeMismatchError` for a type
        of another size, and for predicates.
        """
        self._check_as(type)
        if type.register == self.reg.declared:
            return Value(self.k, self.reg, type)
        return Bits(self.k, self.reg, type) if type.kind == "b" else self._moved(type)

    def _check_as(self, type: ScalarType) -> None:
        require_type("as_", type)
        if type.bits != self.type.bits or pred in (type, self.type):
            raise TypeMismatchError(
                f"as_({type}): {self!r} has {self.type.bits} bits, {type} has {type.bits}; "
                f"convert with k.cvt(value, dtype={type})"
            )

    def _moved(self, type: ScalarType) -> Value:
        moved = self.k.fresh(type)
        self.k.append(f"mov.b{type.bits}", (moved.reg, self.reg))
        return moved

    def _require_integer(self, operator: str) -> None:
        if not self.type.is_integer:
            raise TypeMismatchError(f"{operator} is for integers, got {shown(self)}; divide floats with /")

    def _require_fraction(self) -> None:
        if self.type not in (f32, f64):
            cure = (
                "divide integers with //" if self.type.is_integer else "convert with k.cvt(value, dtype=f32)"
            )
            raise TypeMismatchError(f"/ is for f32 and f64, got {shown(self)}; {cure}")

    def __add__(self, other: Scalar) -> Value:
        return self.k.emit("add", (self, other))

    def __radd__(self, other: float) -> Value:
        return self.k.emit("add", (self, other))

    def __sub__(self, other: Scalar) -> Value:
        return self.k.emit("sub", (self, other))

    def __rsub__(self, other: float) -> Value:
        return self.k.emit("sub", (other, self))

    def __mul__(self, other: Scalar) -> Value:
        if self.type.is_integer:
            return self.k.emit("mul", (self, other), {"mode": "lo"})
        return self.k.emit("mul", (self, other))

    def __rmul__(self, other: float) -> Value:
        return self * other

    def __truediv__(self, other: Scalar) -> Value:
        self._require_fraction()
        return self.k.emit("div", (self, other))

    def __rtruediv__(self, other: float) -> Value:
        self._require_fraction()
        return self.k.emit("div", (other, self))

    def __floordiv__(self, other: Scalar) -> Value:
        self._require_integer("//")
        return self.k.divided(self, other)

    def __mod__(self, other: Scalar) -> Value:
        self._require_integer("%")
        return self.k.remainder(self, other)

    def __pos__(self) -> Value:
        return self

    def __neg__(self) -> Value:
        return self.k.emit("neg", (self,))

    def __and__(self, other: Scalar) -> Value:
        return self.k.emit("and_", (self, other))

    def __or__(self, other: Scalar) -> Value:
        return self.k.emit("or_", (self, other))

    def __xor__(self, other: Scalar) -> Value:
        return self.k.emit("xor", (self, other))

    def __invert__(self) -> Value:
        return self.k.emit("not_", (self,))

    def __lshift__(self, other: Scalar) -> Value:
        return self.k.emit("shl", (self, other))

    def __rshift__(self, other: Scalar) -> Value:
        return self.k.emit("shr", (self, other))

    def __lt__(self, other: Scalar) -> Value:
        return self.k.ordered(self, "lt", other)

    def __le__(self, other: Scalar) -> Value:
        return self.k.ordered(self, "le", other)

    def __gt__(self, other: Scalar) -> Value:
        return self.k.ordered(self, "gt", other)

    def __ge__(self, other: Scalar) -> Value:
        return self.k.ordered(self, "ge", other)

    # The comparison runs on the GPU, so its result is a predicate, not the bool that object's
    # methods return.
    def __eq__(self, other: Scalar) -> Value:  # type: ignore[override]  # see above
        return self.k.emit("setp", (self, other), {"cmp": "eq"})

    def __ne__(self, other: Scalar) -> Value:  # type: ignore[override]  # see above
        return self.k.emit("setp", (self, other), {"cmp": "ne"})


Scalar: TypeAlias = Value | int | float


def is_int(value: object) -> bool:
    """Whether `value` is a Python int, and not a bool."""
    return value.__class__ is int or (isinstance(value, int) and not isinstance(value, bool))


def is_count(value: object) -> TypeGuard[int]:
    """Whether `value` is a positive Python int."""
    return isinstance(value, int) and is_int(value) and value > 0


def require_type(caller: str, type: object) -> None:
    """Raise `TypeMismatchError` if `type`, an argument of `caller`, is no `ScalarType`."""
    if not isinstance(type, ScalarType):
        raise TypeMismatchError(
            f"{caller}: the type must be one of ptxgen.types, such as f32, got {shown(type)}"
        )


def require_value(caller: str, value: object) -> None:
    """Raise `TypeMismatchError` if `value`, an argument of `caller`, is no `Value`."""
    if not isinstance(value, Value):
        raise TypeMismatchError(f"{caller}: the operand must be a value of the kernel, got {shown(value)}")


class Bits(Value):
    """Untyped bits in a register of another class than that of their type, from `Value.as_`."""

    __slots__ = ()


class Var(InPlace, Value):
    """A register that is written more than once: the state of a device loop, and nothing else.

    `v += a` is `v.set(v + a)`, and so are the other operators with `=`.
    """

    __slots__ = ()

    def set(self, value: Scalar) -> None:
        """Emit a `mov` that sets the variable to `value`."""
        type = moved_as(self.type)
        if type is not self.type:
            value = as_bits(value, self.type)
        self.k.emit("mov", (value,), {"type": type}, into=self)

    def as_(self, type: ScalarType) -> Value:
        """A copy of the variable's present value, under another type of the same size."""
        self._check_as(type)
        return self._moved(type)


def moved_as(type: ScalarType) -> ScalarType:
    """The type under which `mov`, loads and stores move a number of `type`; for 16-bit floats and packed
    numbers, which these instructions lack, it is the type of their bits.
    """
    return _BITS.get(type, type)


def as_bits(value: Scalar, type: ScalarType) -> Scalar:
    """A number of Python as the bits of the f16 or bf16 that it is rounded to, a literal; a `Value`
    as it is. Raises `TypeMismatchError` for anything else.
    """
    if isinstance(value, Value):
        return value
    if type not in (f16, bf16) or isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"{type} must be given by a value of the kernel, got {shown(value)}")
    import numpy as np

    with np.errstate(over="ignore"):
        return int(np.asarray(value, np.float64).astype(type.dtype).view(np.uint16))


def require_steps(*steps: object) -> None:
    """Raise `TypeMismatchError` unless all `steps` are Python ints, known while building."""
    for step in steps:
        if not is_int(step):
            raise TypeMismatchError(
                f"the offset of a pointer must be a Python int, got {shown(step)}; what is known "
                "only on the GPU goes into pointer.element(index) or tile.pointer(row, column)"
            )


@dataclass(frozen=True)
class PointerType:
    """The type of an annotation such as `Pointer[f32]`, which says that a parameter points to `dtype`
    elements.
    """

    dtype: ScalarType

    def __post_init__(self) -> None:
        require_type("Pointer[...]", self.dtype)

    def __str__(self) -> str:
        return f"Pointer[{self.dtype}]"


class Pointer:
    """An address in a state space: a register, and a byte offset known while building.

    `space` is the PTX state space, such as `global` or `shared`; `dtype` is the type of the
    elements at the address. Raises `TypeMismatchError` for an offset that does not fit 32 bits.
    """

    __slots__ = ("base", "dtype", "offset", "space")

    def __init__(self, base: Value | ir.Symbol, space: str, dtype: ScalarType, offset: int = 0) -> None:
        require_steps(offset)
        if not -_MAX_OFFSET <= offset <= _MAX_OFFSET:
            raise TypeMismatchError(
                f"the offset of a pointer must fit 32 bits, got {shown(offset)} bytes; "
                "add it to the register with pointer.plus(bytes)"
            )
        self.base = base
        self.space = space
        self.dtype = dtype
        self.offset = offset

    def __class_getitem__(cls, dtype: ScalarType) -> PointerType:
        return PointerType(dtype)

    def __repr__(self) -> str:
        base = self.base.name if isinstance(self.base, ir.Symbol) else self.base.reg.name
        return f"Pointer({self.space} {self.dtype} [{base}+{self.offset}])"

    def at(self, elements: int) -> Pointer:
        """The pointer `elements` elements of `dtype` further on; emits no instruction."""
        require_steps(elements)
        offset = self.offset + elements * self.dtype.nbytes
        return Pointer(self.base, self.space, self.dtype, offset)

    def element(self, index: Scalar) -> Pointer:
        """The pointer to element `index`; this pointer is at element 0.

        `index` is a Python int, which costs no instruction, a u32 or s32 value, which costs one, or
        for a 64-bit address a u64 or s64 value, which costs two. The distance has the width of the
        address, so the bytes of a u32 index may exceed 32 bits; the index itself wraps: with i = 0
        in u32, P.element(i - 1) is 2**32 - 1 elements on, and P.at(-1).element(i) one element back.
        Raises `TypeMismatchError` for any other index.
        """
        return self._element(index, 1)

    def _element(self, index: Scalar, count: int) -> Pointer:
        """The pointer to the first element of vector `index`: element `index` * `count`."""
        if not isinstance(index, Value):
            if not is_int(index):
                raise self._no_index(index)
            return self.at(int(index) * count)
        base, size = self.value, self.dtype.nbytes * count
        far = base.type.bits == u64.bits
        wide = {u32: u64, s32: s64}.get(index.type) if far else None
        if not wide and (index.type.kind not in "us" or index.type.bits != base.type.bits):
            raise self._no_index(index)
        emit = base.k.emit
        start = Value(base.k, base.reg, wide or index.type)  # the same bits, in the type of the sum
        if wide:
            moved = emit("mad_wide", (index, size, start))
        elif far:  # `mad.lo.u64` is three instructions of the GPU, these are two
            moved = emit("add", (start, emit("shl", (index, size.bit_length() - 1))))
        else:
            moved = emit("mad", (index, size, start), {"mode": "lo"})
        return Pointer(moved.as_(base.type), self.space, self.dtype, self.offset)

    def row(self, index: Scalar, columns: Scalar) -> Pointer:
        """The pointer to the beginning of row `index` of a matrix of `columns` columns; this pointer is
        at row 0.

        The index is u32 or s32, and `columns` of the same type or a positive Python int. The product
        is 64 bits wide, so that matrices may have more elements than 32 bits count. Raises
        `TypeMismatchError` for anything else.
        """
        both = [value.type for value in (index, columns) if isinstance(value, Value)]
        wide = self.value.type.bits == u64.bits
        if isinstance(index, Value) and wide and both in ([u32], [s32]) and is_count(columns):
            return self._element(index, columns)
        if not isinstance(index, Value) or not wide or both not in ([u32, u32], [s32, s32]):
            raise TypeMismatchError(
                f"{self!r}.row: the index must be a u32 or s32 value, the columns of the same type or a "
                f"positive int, and the address of 64 bits, got {shown(index)} and {shown(columns)}; "
                "for an s32 index and u32 columns write P.row(index, k.signed(columns)), or "
                "P.row(index.as_(u32), columns) if the index is not negative; for a Python number as the "
                "index, P.element(index * columns)"
            )
        return self.element(index.k.emit("mul_wide", (index, columns)))

    def vec(self, count: int) -> Vectors:
        """A view of the memory from this pointer on as vectors of `count` elements, 2 or 4: `P.vec(4)[i]`
        loads the elements from 4 * i to 4 * i + 3 at once, as a tuple, and `P.vec(4)[i] = values`
        stores four.

        The address of a vector must be a multiple of its bytes. Raises `TypeMismatchError` for
        another count.
        """
        if not is_int(count) or count not in _VECTORS:
            raise TypeMismatchError(
                f"{self!r}.vec: a vector has 2 or 4 elements, got {shown(count)}; load several, "
                "P.vec(4)[2 * i] and P.vec(4)[2 * i + 1]"
            )
        return Vectors(self, count)

    def __getitem__(self, index: Scalar) -> Value:
        """Load element `index`, in the type of the elements.

        f16 and bf16 elements are not converted; `k.cvt(P[i], dtype=f32)` converts one.
        """
        return self.value.k.load(self.element(index))

    def __setitem__(self, index: Scalar, value: Scalar) -> None:
        """Store `value`, which has the type of the elements, to element `index`."""
        if isinstance(value, Sequence):
            raise TypeMismatchError(
                f"P[i] = v stores one element, got {shown(value)}; store 2 or 4 with P.vec(2)[i] = values"
            )
        self.value.k.store(self.element(index), value)

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(
            f"{self!r} does not know how many elements it has, so Python cannot iterate over it; "
            "use 'with k.loop(start, stop) as i:' and P[i]"
        )

    def _no_index(self, index: object) -> TypeMismatchError:
        bits = "32 or 64" if self.value.type.bits == u64.bits else "32"
        cure = "; P.row(i, columns)[j] is an element of a matrix" if isinstance(index, tuple) else ""
        return TypeMismatchError(
            f"the index of an element in {self.space} memory must be a Python int or an integer of "
            f"{bits} bits, got {shown(index)}{cure}"
        )

    def plus(self, nbytes: Scalar) -> Pointer:
        """The pointer `nbytes` bytes further on; a `Value` has the width of the address.

        The address is u64 for global memory and u32 for shared memory. Emits one addition.
        """
        return Pointer(self.value + nbytes, self.space, self.dtype, self.offset)

    @property
    def value(self) -> Value:
        """The register of the address, without the constant byte offset: u64, or u32 in shared memory."""
        assert isinstance(self.base, Value)  # only parameters are addressed by name
        return self.base

    @property
    def address(self) -> ir.Address:
        """The address as an operand of a load or store in PTX: `[base+offset]`."""
        base = self.base if isinstance(self.base, ir.Symbol) else self.base.reg
        return ir.Address(base, self.offset)


class Vectors:
    """The memory from a pointer on as vectors of `count` elements, each of which is one load or store; made
    by `Pointer.vec`.
    """

    __slots__ = ("_count", "_pointer")

    def __init__(self, pointer: Pointer, count: int) -> None:
        self._pointer = pointer
        self._count = count

    def __repr__(self) -> str:
        return f"{self._pointer!r}.vec({self._count})"

    def pointer(self, index: Scalar) -> Pointer:
        """The pointer to the first element of vector `index`, an index as of `Pointer.element`."""
        return self._pointer._element(index, self._count)

    def __getitem__(self, index: Scalar) -> tuple[Value, ...]:
        """Load vector `index`: its elements, in their type."""
        loaded: tuple[Value, ...] = self._pointer.value.k.load(self.pointer(index), self._count)
        return loaded

    def __setitem__(self, index: Scalar, values: Sequence[Scalar] | Scalar) -> None:
        """Store the elements of vector `index`. Raises `TypeMismatchError` for another number of
        values.
        """
        if not isinstance(values, Sequence) or len(values) != self._count:
            raise TypeMismatchError(
                f"{self!r}[i] = values stores {self._count} elements, got {shown(values)}; "
                f"give a tuple of {self._count}"
            )
        self._pointer.value.k.store(self.pointer(index), values)

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(f"{self!r} does not know how many vectors it has; use 'with k.loop(...)'")
