"""Operators of the values of a function of scores: what they record, and the types they take."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from flash.mods.operations import MOST_SHIFT
from flash.mods.trace import Constant
from flash.mods.values import WORDS, Traced, lifted
from ptxgen.errors import TypeMismatchError
from ptxgen.types import ScalarType, f32, pred, s32

_MOST_FACTORS: Final = 64  # the largest exponent that is a product


def recorded(op: str, kind: ScalarType, *args: Traced, value: Constant | None = None) -> Traced:
    """The result of an operation, of type `kind`."""
    recorder = args[0].recorder
    return Traced(recorder, recorder.record(op, kind, *[a.index for a in args], value=value), kind)


def constant_of(a: Traced) -> Constant | None:
    """The number of a constant; None for a value that is known only in the kernel."""
    step = a.recorder.steps[a.index]
    return step.value if step.op == "const" and not isinstance(step.value, str) else None


def constant(like: Traced, number: Constant, kind: ScalarType) -> Traced:
    """The constant `number` as a value of the function that `like` belongs to."""
    return Traced(like.recorder, like.recorder.constant(number, kind), kind)


def pair(a: Any, b: Any) -> tuple[Traced, Traced]:
    """Two operands of one type: of numbers f32 if one of them is, and a condition beside a number is
    0 or 1.
    """
    like = a if isinstance(a, Traced) else b
    one, other = lifted(like.recorder, a, like.kind), lifted(like.recorder, b, like.kind)
    if one.kind is other.kind:
        return one, other
    one, other = (as_integer(x) if x.kind is pred else x for x in (one, other))
    return (one, other) if one.kind is other.kind else (as_float(one), as_float(other))


# The logical operations that operations on numbers are for two conditions; a difference has none.
_OF_CONDITIONS: Final = {"add": "or", "max": "or", "mul": "and", "min": "and"}


def binary(op: str, a: Any, b: Any) -> Traced:
    """The value of the operation `op` of two numbers."""
    one, other = pair(a, b)
    if one.kind is pred:
        if op not in _OF_CONDITIONS:
            raise TypeMismatchError(f"- is for numbers, got {WORDS[pred]} and {WORDS[pred]}")
        return bitwise(_OF_CONDITIONS[op], one, other)
    return recorded(op, one.kind, one, other)


def compared(op: str, a: Any, b: Any) -> Traced:
    """The value of the comparison `op` of two numbers or conditions; False is less than True."""
    one, other = pair(a, b)
    if one.kind is not pred:
        return recorded(op, pred, one, other)
    if op in ("eq", "ne"):
        differ = bitwise("xor", one, other)
        return differ if op == "ne" else inverted(differ)
    return bitwise("and" if op == "lt" else "or", inverted(one), other)


def divided(a: Any, b: Any) -> Traced:
    """a / b, f32."""
    one, other = (as_float(x) for x in pair(a, b))
    return recorded("div", f32, one, other)


def quotient(a: Any, b: Any) -> Traced:
    """a // b, rounded down; for integers 0 if b is 0."""
    one, other = (as_integer(x) if x.kind is pred else x for x in pair(a, b))
    if one.kind is f32:
        return unary("floor", divided(one, other))
    by = _divisor(other)
    if by is None:
        return recorded("quotient", s32, one, other)
    if by < 0:
        return quotient(-one, -by)
    return one if by == 1 else recorded("floordiv", s32, one, value=int(by))


def _divisor(a: Traced) -> Constant | None:
    """The integer of a constant divisor; None for a divisor that is known only in the kernel. Raises
    `TypeMismatchError` for 0.
    """
    by = constant_of(a)
    if by == 0:
        raise TypeMismatchError("// and % divide by a number that is not 0, got 0")
    return by


def remainder(a: Any, b: Any) -> Traced:
    """a % b, with the sign of b: a - a // b * b."""
    one, other = (as_integer(x) if x.kind is pred else x for x in pair(a, b))
    by = None if one.kind is f32 else _divisor(other)
    if by is None:
        return one - quotient(one, other) * other
    if by < 0:
        return -remainder(-one, -by)
    return recorded("mod", s32, one, value=int(by))


def power(a: Any, b: Any) -> Traced:
    """a ** b. A constant b that is a whole number, up to 64, is a product."""
    like = a if isinstance(a, Traced) else b
    one, other = lifted(like.recorder, a, s32), lifted(like.recorder, b, s32)
    one, other = (as_integer(x) if x.kind is pred else x for x in (one, other))
    exponent, base = constant_of(other), constant_of(one)
    is_float = f32 in (one.kind, other.kind)
    if exponent is not None and abs(exponent) <= _MOST_FACTORS and exponent == int(exponent):
        product = _product(as_float(one) if is_float or exponent < 0 else one, abs(int(exponent)))
        return product if exponent >= 0 else divided(1.0, product)
    if exponent is not None and abs(exponent) == 0.5:
        return unary("sqrt" if exponent > 0 else "rsqrt", as_float(one))
    if base == 2:
        if not is_float:
            return shifted("shl", 1, other)
        return unary("exp2", as_float(other))
    if not is_float:
        raise TypeMismatchError(
            "** of two integers needs a constant exponent of 0 to 64, or the base 2; write a base as a float"
        )
    if base is not None and base > 0:
        return unary("exp2", as_float(other) * float(np.log2(base)))
    size = unary("exp2", as_float(other) * unary("log2", unary("abs", as_float(one))))
    size = choice(compared("eq", other, 0), 1.0, size)
    if other.kind is s32:
        negates = compared("ne", bitwise("and", other, 1), 0)
        return choice(compared("lt", one, 0) & negates, -size, size)
    return choice(compared("lt", one, 0), float("nan"), size)


def _product(a: Traced, factors: int) -> Traced:
    """a to the power of a number that is not negative, by repeated squaring."""
    if factors == 0:
        return constant(a, 1, a.kind)
    if factors == 1:
        return a
    half = _product(a, factors // 2)
    return half * half * a if factors % 2 else half * half


def unary(op: str, a: Traced) -> Traced:
    """The value of the operation `op` of a number, of the number's type."""
    if a.kind is pred:
        raise TypeMismatchError(f"{op} is for numbers, got {WORDS[pred]}")
    return recorded(op, a.kind, a)


def bitwise(op: str, a: Any, b: Any) -> Traced:
    """The operation `op`, and, or or xor, of conditions, or of the bits of integers."""
    one, other = pair(a, b)
    if one.kind is f32:
        raise TypeMismatchError(
            f"{_BITWISE[op]} is for conditions and integers, got {WORDS[f32]}; put comparisons in "
            "parentheses: (query >= key) & (key < 8)"
        )
    if one.kind is pred:
        for x, y in ((one, other), (other, one)):
            known = constant_of(x)
            if known is not None:
                return _with_constant(op, y, known=bool(known))
    return recorded(op, one.kind, one, other)


_BITWISE: Final = {"and": "&", "or": "|", "xor": "^"}


def _with_constant(op: str, a: Traced, *, known: bool) -> Traced:
    """The operation `op`, and, or or xor, of a condition and the constant `known`."""
    if op == "xor":
        return inverted(a) if known else a
    return a if known is (op == "and") else constant(a, known, pred)


def inverted(a: Traced) -> Traced:
    """The negation of a condition, for a comparison of integers the opposite comparison; or the inverted bits
    of an integer.
    """
    if a.kind is f32:
        raise TypeMismatchError(f"~ is for conditions and integers, got {WORDS[f32]}")
    known = constant_of(a)
    if known is not None and a.kind is pred:
        return constant(a, not known, pred)
    record, step = a.recorder, a.recorder.steps[a.index]
    opposite = {"lt": "le", "le": "lt", "eq": "ne", "ne": "eq"}.get(step.op)
    if opposite is not None and record.steps[step.args[0]].kind is s32:
        args = step.args if step.op in ("eq", "ne") else step.args[::-1]
        return Traced(record, record.record(opposite, pred, *args), pred)
    return recorded("not", a.kind, a)


def shifted(op: str, a: Any, b: Any) -> Traced:
    """The bits of an integer shifted by 0 to 31 in the direction of `op`."""
    one, other = pair(a, b)
    if one.kind is not s32:
        raise TypeMismatchError(f"<< and >> are for integers, got {WORDS[one.kind]}")
    bits = constant_of(other)
    if bits is not None and not 0 <= bits <= MOST_SHIFT:
        raise TypeMismatchError(f"<< and >> shift by 0 to {MOST_SHIFT} bits, got {bits}")
    return recorded(op, s32, one, other)


def choice(condition: Traced, a: Any, b: Any) -> Traced:
    """`a` where the condition holds, else `b`."""
    numeric = a if isinstance(a, Traced) else b
    like = numeric.kind if isinstance(numeric, Traced) else s32
    one, other = pair(lifted(condition.recorder, a, like), lifted(condition.recorder, b, like))
    known = constant_of(condition)
    if known is not None:
        return one if known else other
    return recorded("where", one.kind, condition, one, other)


def as_float(a: Traced) -> Traced:
    """An integer as f32, rounded to nearest, or a condition as 0.0 or 1.0; a number unchanged."""
    if a.kind is f32:
        return a
    if a.kind is pred:
        return choice(a, 1.0, 0.0)
    step, record = a.recorder.steps[a.index], a.recorder
    if step.op == "const":
        return constant(a, step.value, f32)  # type: ignore[arg-type]  # a number
    if step.op == "where" and all(record.steps[n].op == "const" for n in step.args[1:]):
        one, other = (as_float(Traced(record, n, s32)) for n in step.args[1:])
        return choice(Traced(record, step.args[0], pred), one, other)
    if step.op in ("abs", "neg"):  # the same, of a sum whose conversion is cheaper
        return unary(step.op, as_float(Traced(record, step.args[0], s32)))
    return recorded("float", f32, a)


def as_integer(a: Traced) -> Traced:
    """A number as s32, rounded towards zero, or a condition as 0 or 1; an integer unchanged."""
    if a.kind is s32:
        return a
    if a.kind is pred:
        return recorded("where", s32, a, constant(a, 1, s32), constant(a, 0, s32))
    return recorded("int", s32, a)
