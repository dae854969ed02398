"""Pairs of f32 values, on which one instruction computes (PTX ISA, "add" to "fma", `.f32x2`)."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.ops import Ops
from ptxgen.dsl.values import Value, Var, is_int
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import f32


class Pair:
    """Two f32 values of a thread in a register of 64 bits, `low` in its lower half; `k.pair` makes it.

    `a + b`, `a - b`, `a * b` and `a.fma(b, c)`, which is a * b + c rounded once, compute with both halves in
    one instruction, and round each to nearest. The other operands are pairs, or f32 values or numbers, which
    stand for a pair of two equal ones. It takes sm_100 or later. Raises `TypeMismatchError` for others.
    """

    def __init__(self, k: Ops, bits: Value) -> None:
        self._k = k
        self.bits = bits

    def __repr__(self) -> str:
        return f"Pair({self.bits!r})"

    @classmethod
    def of(cls, k: Ops, low: object, high: object) -> Pair:
        """The pair of two f32 values or numbers; see `k.pair`."""
        halves = [_half(k, low)] * 2 if high is low else [_half(k, low), _half(k, high)]
        return cls(k, k.pack(halves))

    def __add__(self, other: Pair | Value | float) -> Pair:
        return Pair(self._k, self._k.add_f32x2(self.bits, self._bits(other)))

    def __sub__(self, other: Pair | Value | float) -> Pair:
        return Pair(self._k, self._k.sub_f32x2(self.bits, self._bits(other)))

    def __mul__(self, other: Pair | Value | float) -> Pair:
        return Pair(self._k, self._k.mul_f32x2(self.bits, self._bits(other)))

    def fma(self, by: Pair | Value | float, plus: Pair | Value | float) -> Pair:
        """Multiply both halves of this pair by those of `by` and add those of `plus`, each rounded once."""
        return Pair(self._k, self._k.fma_f32x2(self.bits, self._bits(by), self._bits(plus), rnd="rn"))

    def halves(self, into: Sequence[Var] | None = None) -> tuple[Value, Value]:
        """The lower and the upper value, f32; `into` are two variables that they are written to."""
        low, high = self._k.unpack(self.bits, into=into)
        return low.as_(f32), high.as_(f32)

    def _bits(self, other: Pair | Value | float) -> Value:
        return other.bits if isinstance(other, Pair) else Pair.of(self._k, other, other).bits


def _half(k: Ops, value: object) -> Value:
    """A half of a pair, f32. Raises `TypeMismatchError` for another value."""
    if isinstance(value, Value) and value.type is f32:
        return value
    if isinstance(value, float) or (isinstance(value, int) and is_int(value)):
        return k.mov(float(value), type=f32)
    raise TypeMismatchError(f"pair: expected pairs, f32 values or numbers, got {shown(value)}")
