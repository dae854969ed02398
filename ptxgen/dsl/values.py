"""What a kernel body computes with: values, loop variables and pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias

from ptxgen import ir
from ptxgen.errors import TypeMismatchError
from ptxgen.types import ScalarType, pred

if TYPE_CHECKING:
    from ptxgen.dsl.builder import KernelBuilder


class Value:
    """One number per thread, in a register that is written once.

    Operators are explicitly rounded (`add.rn`, `mul.rn`), so they mean the same on every backend; fusing is written
    `k.fma`. An expression emits each time Python evaluates it: name what you use twice.
    """

    __slots__ = ("k", "reg", "type")

    def __init__(self, k: KernelBuilder, reg: ir.Reg, type: ScalarType) -> None:
        self.k = k
        self.reg = reg
        self.type = type

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reg.name}: {self.type})"

    def __bool__(self) -> NoReturn:
        raise TypeMismatchError(
            f"{self!r} is known only on the GPU, so Python cannot branch on it; "
            "use 'with k.when(condition):' for a branch or k.selp(a, b, condition) for a choice"
        )

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(f"{self!r} is a single value and cannot be iterated")

    __hash__ = object.__hash__

    def as_(self, type: ScalarType) -> Value:
        """The same bits under another type of the same size; an instruction only when the register class changes."""
        if type.bits != self.type.bits or pred in (type, self.type):
            raise TypeMismatchError(
                f"as_({type}): {self!r} has {self.type.bits} bits, {type} has {type.bits}; convert with k.cvt(value, dtype={type})"
            )
        if type.register == self.reg.declared or type.kind == "b":
            return Value(self.k, self.reg, type)
        moved = self.k.fresh(type)
        self.k.append(f"mov.b{type.bits}", (moved.reg, self.reg))
        return moved

    def __add__(self, other: Scalar) -> Value:
        return self.k.emit("add", (self, other))

    def __radd__(self, other: float) -> Value:
        return self.k.emit("add", (self, other))

    def __sub__(self, other: Scalar) -> Value:
        return self.k.emit("sub", (self, other))

    def __rsub__(self, other: float) -> Value:
        return self.k.emit("sub", (other, self))

    def __mul__(self, other: Scalar) -> Value:
        if self.type.is_float:
            return self.k.emit("mul", (self, other))
        return self.k.emit("mul", (self, other), {"mode": "lo"})

    def __rmul__(self, other: float) -> Value:
        return self * other

    def __floordiv__(self, other: Scalar) -> Value:
        return self.k.emit("div", (self, other))

    def __mod__(self, other: Scalar) -> Value:
        return self.k.emit("rem", (self, other))

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
        return self.k.emit("setp", (self, other), {"cmp": "lt"})

    def __le__(self, other: Scalar) -> Value:
        return self.k.emit("setp", (self, other), {"cmp": "le"})

    def __gt__(self, other: Scalar) -> Value:
        return self.k.emit("setp", (self, other), {"cmp": "gt"})

    def __ge__(self, other: Scalar) -> Value:
        return self.k.emit("setp", (self, other), {"cmp": "ge"})

    def __eq__(self, other: Scalar) -> Value:  # type: ignore[override]  # a comparison on the GPU, as numpy's
        return self.k.emit("setp", (self, other), {"cmp": "eq"})

    def __ne__(self, other: Scalar) -> Value:  # type: ignore[override]  # a comparison on the GPU, as numpy's
        return self.k.emit("setp", (self, other), {"cmp": "ne"})


Scalar: TypeAlias = Value | int | float


class Var(Value):
    """A register that is written again: state that goes round a device loop, and nothing else."""

    __slots__ = ()

    def set(self, value: Scalar) -> None:
        """Give the variable a new value."""
        self.k.emit("mov", (value,), {"type": self.type}, into=self)


class Pointer:
    """An address in a memory space: a register, and a byte offset known while building.

    `space` is `global` or `shared`; `dtype` is the type of the elements it points to.
    """

    __slots__ = ("base", "dtype", "offset", "space")

    def __init__(self, base: Value | ir.Symbol, space: str, dtype: ScalarType, offset: int = 0) -> None:
        self.base = base
        self.space = space
        self.dtype = dtype
        self.offset = offset

    def __repr__(self) -> str:
        base = self.base.name if isinstance(self.base, ir.Symbol) else self.base.reg.name
        return f"Pointer({self.space} {self.dtype} [{base}+{self.offset}])"

    def at(self, elements: int) -> Pointer:
        """The pointer so many elements further on."""
        return Pointer(self.base, self.space, self.dtype, self.offset + elements * self.dtype.nbytes)

    def plus(self, nbytes: Value) -> Pointer:
        """The pointer so many bytes (u64) further on, known only on the GPU."""
        return Pointer(self.value + nbytes, self.space, self.dtype, self.offset)

    @property
    def value(self) -> Value:
        """The register part of the address."""
        assert isinstance(self.base, Value)  # only parameters are addressed by name
        return self.base

    @property
    def address(self) -> ir.Address:
        """The operand `[base+offset]`."""
        return ir.Address(self.base if isinstance(self.base, ir.Symbol) else self.base.reg, self.offset)
