"""What the values of a kernel body need of the kernel that they live in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

from ptxgen import ir
from ptxgen.isa.spec import Modifier
from ptxgen.types import ScalarType

if TYPE_CHECKING:
    from ptxgen.dsl.values import Pointer, Scalar, Value, Var

# Rows of the instruction table with one result, which the operators of values stand for.
_Operator: TypeAlias = Literal[
    "add",
    "and_",
    "cvt",
    "div",
    "mad",
    "mad_wide",
    "mov",
    "mul",
    "mul_wide",
    "neg",
    "not_",
    "or_",
    "rem",
    "setp",
    "shl",
    "shr",
    "sub",
    "xor",
]


class Emitter(Protocol):
    """The kernel that a value lives in, as far as values use it: it takes instructions."""

    name: str

    def emit(
        self,
        name: _Operator,
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
        """Write one element at a pointer, or 2 or 4."""

    def divided(self, a: Value, by: Scalar) -> Value:
        """The quotient of two integers."""

    def remainder(self, a: Value, by: Scalar) -> Value:
        """The remainder of two integers."""

    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None:
        """Append one instruction without checks."""

    def fresh(self, type: ScalarType) -> Value:
        """A value of `type` in a new register, which no instruction has written yet."""
