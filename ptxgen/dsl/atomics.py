"""Atomic read-modify-write operations on memory (`k.atomic`)."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ptxgen.dsl.choice import check_value
from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Pointer, Scalar, Value
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import ScalarType, b16, b32, b64, bf16, bf16x2, f16, f16x2, f32, f64, s32, s64, u32, u64

Scope: TypeAlias = Literal["cta", "gpu", "sys", "cluster"]
Order: TypeAlias = Literal["relaxed", "acquire", "release", "acq_rel"]

# The types of elements that each operation takes (PTX ISA, "atom").
_ADDED: Final = (u32, s32, u64, s64, f32, f64, f16, bf16, f16x2, bf16x2)
_ORDERED: Final = (u32, s32, u64, s64)
_WORDS: Final = (b32, u32, s32, b64, u64, s64)
_MOVED: Final = (*_WORDS, f32, f64)
_COMPARED: Final = (*_MOVED, b16, f16, bf16)
_HALVES: Final = (f16, bf16, f16x2, bf16x2)
_BITS: Final = {2: b16, 4: b32, 8: b64}


class Atomic:
    """Each operation atomically reads the element at a pointer, such as `P.element(i)`, replaces it, and
    returns its old value.

    The pointer is to global or shared memory. `scope` says for which threads the operation is atomic
    (default: "gpu"), `order` whether other accesses of this thread stay before it ("release"), after it
    ("acquire") or both ("acq_rel"; default: "relaxed"). Sums of floats depend on the order in which threads
    arrive. Raises `TypeMismatchError` for elements that an operation does not take.
    """

    def __init__(self, k: Control) -> None:
        self._k = k

    def add(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Add `value` to the element and return the old element; integers wrap around."""
        self._check("atomic.add", at, value, _ADDED)
        if at.dtype in _HALVES:
            return self._emitted(at, (value,), {}, at.dtype, scope, order)
        if at.dtype is s64:  # PTX adds u64 only, and a sum has the same bits with and without sign
            number = value if isinstance(value, Value) else self._literal(value, s64)
            return self._emitted(at, (number.as_(u64),), {"op": "add"}, u64, scope, order)
        return self._emitted(at, (value,), {"op": "add"}, at.dtype, scope, order)

    def min(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Replace the element by the smaller one of it and `value`; return the old element."""
        self._check("atomic.min", at, value, _ORDERED)
        return self._emitted(at, (value,), {"op": "min"}, at.dtype, scope, order)

    def max(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Replace the element by the larger one of it and `value`; return the old element."""
        self._check("atomic.max", at, value, _ORDERED)
        return self._emitted(at, (value,), {"op": "max"}, at.dtype, scope, order)

    def and_(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Replace the element by its bitwise and with `value`; return the old element."""
        return self._bits("and", at, value, scope, order)

    def or_(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Replace the element by its bitwise or with `value`; return the old element."""
        return self._bits("or", at, value, scope, order)

    def xor(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Replace the element by its bitwise xor with `value`; return the old element."""
        return self._bits("xor", at, value, scope, order)

    def exchange(
        self, at: Pointer, value: Scalar, *, scope: Scope | None = None, order: Order | None = None
    ) -> Value:
        """Write `value` and return the old element."""
        self._check("atomic.exchange", at, value, _MOVED)
        return self._emitted(at, (value,), {"op": "exch"}, _BITS[at.dtype.nbytes], scope, order)

    def compare_exchange(
        self,
        at: Pointer,
        expected: Scalar,
        value: Scalar,
        *,
        scope: Scope | None = None,
        order: Order | None = None,
    ) -> Value:
        """Write `value` if the element has the bits of `expected`; return the old element."""
        self._check("atomic.compare_exchange", at, expected, _COMPARED)
        self._check("atomic.compare_exchange", at, value, _COMPARED)
        moved = _BITS[at.dtype.nbytes]
        return self._emitted(at, (expected, value), None, moved, scope, order)

    def _bits(self, op: str, at: Pointer, value: Scalar, scope: Scope | None, order: Order | None) -> Value:
        self._check(f"atomic.{op if op == 'xor' else f'{op}_'}", at, value, _WORDS)
        return self._emitted(at, (value,), {"op": op}, _BITS[at.dtype.nbytes], scope, order)

    def _check(self, caller: str, at: object, value: Scalar, types: tuple[ScalarType, ...]) -> None:
        if not isinstance(at, Pointer):
            raise TypeMismatchError(
                f"{caller}: the element must be given by a pointer, such as P.element(i), got {shown(at)}"
            )
        if at.dtype not in types:
            raise TypeMismatchError(
                f"{caller} takes elements of {', '.join(map(str, types))}, got {shown(at)}"
            )
        check_value(f"{caller}: the value", at.dtype, value)

    def _emitted(
        self,
        at: Pointer,
        values: tuple[Scalar, ...],
        op: dict[str, str] | None,
        moved: ScalarType,
        scope: Scope | None,
        order: Order | None,
    ) -> Value:
        if moved is not at.dtype:  # the bits of a literal depend on the type of the elements
            values = tuple([v if isinstance(v, Value) else self._literal(v, at.dtype) for v in values])
        modifiers: dict[str, str | ScalarType] = {"space": at.space, "type": moved, **(op or {})}
        if order is not None:
            modifiers["sem"] = order
        if scope is not None or order is not None:
            modifiers["scope"] = scope or "gpu"
        old: Any  # a vector has a tuple, and there is none here
        if op is None:
            old = self._k.emit("atom_cas", (at, *values), modifiers)
        else:
            old = self._k.emit("atom", (at, *values), modifiers, into=None)
        result: Value = old
        return result if moved is at.dtype else result.as_(at.dtype)

    def _literal(self, number: float, type: ScalarType) -> Value:
        value: Value = self._k.emit("mov", (number,), {"type": type})
        return value
