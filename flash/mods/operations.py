"""The operations of traced functions, each declared once: in numpy, in a kernel, its derivatives, its
rounding error, and the range of its integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from flash.mods.approximations import (
    LARGEST_ANGLE,
    erf_of_array,
    error_function,
    logistic,
    logistic_of_array,
    sine,
)
from flash.mods.hyperbolic import tanh
from flash.mods.trace import Step, Trace
from ptxgen import dsl
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, u32

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value

LEAST, MOST = -(2**31), 2**31 - 1  # of s32
MOST_SHIFT: Final = 31  # bits of an s32
_HALF: Final = 0.5  # the fraction of a power of two (`math.frexp`)
_LEAST_NORMAL: Final = 2.0**-126
Ends = tuple[Any, Any]  # the least and the largest value


class Emission(NamedTuple):
    """The context in which an operation is emitted: the builder, the step, whether f32 divisions are rounded
    once, and whether the first operand is known not to be negative.
    """

    k: KernelBuilder
    step: Step
    rounds_once: bool
    is_natural: bool = False

    def value(self, x: Any) -> Value:
        """A constant in a register, of the type of the step; a value unchanged."""
        return x if isinstance(x, dsl.Value) else self.k.mov(x, type=self.step.kind)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of traced functions.

    `numpy` takes arrays of the operands, and then the value of the step if it has one. `emit` takes an
    `Emission` and the operands: values, of which all but the first may be Python numbers.

    `slopes` are the derivatives of an f32 result by its f32 operands, given a module with functions
    (`numpy`, or `flash.mods.functions`), the operands and the result. `steepest` are their largest
    magnitudes where the function has a kink. `error` is that of an f32 result in units of 2**-24,
    given the operands and the result: by default that of one rounding. `jump`, for a function of
    whole numbers, is the distance of an operand from the nearest number at which the result changes
    by 1.

    `ends` are the limits of an integer result, given those of the operands that are integers and the
    value of the step; by default those of s32. `is_long` is whether the operation takes more than a few
    instructions.
    """

    numpy: Callable[..., Any]
    emit: Callable[..., Any]
    slopes: Callable[..., tuple[Any, ...]] | None = None
    steepest: tuple[float, ...] | None = None
    error: Callable[..., Any] = lambda *operands: np.abs(operands[-1])
    jump: Callable[[Any], Any] | None = None
    ends: Callable[[Sequence[Ends], Any], Ends | None] = lambda _of, _value: (LEAST, MOST)
    is_long: bool = False


def _exact(*_: Any) -> float:
    return 0.0


def _of_magnitude(units: float) -> Callable[..., Any]:
    """The `error` of an `Operation` that is `units` * 2**-24 of the result's magnitude."""
    return lambda *operands: units * np.abs(operands[-1])


def _chosen(e: Emission, condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, dsl.Value):
        return a if condition else b
    if e.step.kind in (f32, s32):
        return e.k.selp(a, b, condition, type=e.step.kind)
    shown = condition & a if isinstance(a, dsl.Value) else condition if a else None
    otherwise = ~condition & b if isinstance(b, dsl.Value) else ~condition if b else None
    parts = [part for part in (shown, otherwise) if part is not None]
    return parts[0] | parts[1] if len(parts) > 1 else parts[0] if parts else False


def _divided(_: Emission, a: Value, b: Any) -> Value:
    is_power = not isinstance(b, dsl.Value) and math.isfinite(b) and abs(math.frexp(b)[0]) == _HALF
    # For a power of two the product with 1 / b, which is an f32, is the quotient.
    quotient: Value = a * (1 / b) if is_power and abs(b) > 2.0**-127 else a / b
    return quotient


def _by_constant(e: Emission, a: Value) -> Value:
    """a // n or a % n of a positive n, rounded down."""
    n, is_quotient = int(e.step.value or 1), e.step.op == "floordiv"
    if n & (n - 1) == 0:
        return a >> (n.bit_length() - 1) if is_quotient else a & (n - 1)
    if e.is_natural:
        return (a.as_(u32) // n if is_quotient else a.as_(u32) % n).as_(s32)
    quotient = a // n  # rounded towards zero
    rest = a - quotient * n
    below = rest < 0
    if is_quotient:
        return quotient - e.k.selp(1, 0, below, type=s32)
    return rest + e.k.selp(n, 0, below, type=s32)


def _quotient(e: Emission, a: Value, b: Any) -> Value:
    """a // b, rounded down; 0 if b is 0."""
    k, by = e.k, e.value(b)
    safe = k.selp(1, by, by == 0, type=s32)
    quotient = a // safe  # rounded towards zero
    rest = a - quotient * safe
    rounded = quotient - k.selp(1, 0, (rest != 0) & ((rest ^ safe) < 0), type=s32)
    return k.selp(0, rounded, by == 0, type=s32)


def _quotients(a: Any, b: Any) -> Any:
    """a // b in int32, which wraps; 0 if b is 0."""
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.floor_divide(a, safe))


def _amount(bits: Any) -> Any:
    """The number of bits of a shift; u32 in a kernel, whose shift instructions clamp it."""
    return bits.as_(u32) if isinstance(bits, dsl.Value) else bits


def _shifted_left(a: Any, bits: Any) -> Any:
    inside = (bits >= 0) & (bits <= MOST_SHIFT)
    return np.where(inside, np.left_shift(a, bits & MOST_SHIFT), 0).astype(np.int32)


def _shifted_right(a: Any, bits: Any) -> Any:
    inside = (bits >= 0) & (bits <= MOST_SHIFT)
    return np.right_shift(a, np.where(inside, bits, MOST_SHIFT)).astype(np.int32)


def _integers(x: Any) -> Any:
    """Numbers as int32, rounded towards zero; limited to the ends of int32, and 0 for NaN."""
    whole = np.trunc(np.where(np.isnan(x), 0, x)).astype(np.float64)
    return np.clip(whole, LEAST, MOST).astype(np.int32)


def _ends_of_shift(of: Sequence[Ends], left: bool) -> Ends | None:
    """The ends of a << bits, or of a >> bits; None if they are not known."""
    a, bits = of
    if bits[0] < 0 or bits[1] > MOST_SHIFT:
        return None if left else (LEAST, MOST)
    shift = operator.lshift if left else operator.rshift
    ends = [shift(x, n) for x in a for n in bits]
    return min(ends), max(ends)


def _ends_of_bits(of: Sequence[Ends], *, least: bool) -> Ends:
    """The ends of the result of a & b if `least`, else of a | b and a ^ b."""
    natural = [high for low, high in of if low >= 0]
    if least and natural:
        return 0, min(natural)
    if len(natural) == len(of):
        return 0, 2 ** max(natural).bit_length() - 1
    return LEAST, MOST


def _ends_of_product(of: Sequence[Ends], _: Any) -> Ends:
    products = [x * y for x in of[0] for y in of[1]]
    return min(products), max(products)


def _ends_of_abs(of: Sequence[Ends], _: Any) -> Ends:
    low, high = of[0]
    return max(low, -high, 0), max(-low, high)


def _ends_of_quotient(of: Sequence[Ends], _: Any) -> Ends:
    most = max(abs(of[0][0]), abs(of[0][1]))
    return (0 if of[0][0] >= 0 and of[1][0] >= 0 else -most), most


def _apart_from_whole(x: Any) -> Any:
    return np.abs(x - np.rint(x))


OPERATIONS: Final[dict[str, Operation]] = {
    "add": Operation(
        numpy=np.add,
        emit=lambda _e, a, b: a + b,
        slopes=lambda _f, _a, _b, _y: (1.0, 1.0),
        ends=lambda of, _value: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
    ),
    "sub": Operation(
        numpy=np.subtract,
        emit=lambda _e, a, b: a - b,
        slopes=lambda _f, _a, _b, _y: (1.0, -1.0),
        ends=lambda of, _value: (of[0][0] - of[1][1], of[0][1] - of[1][0]),
    ),
    "mul": Operation(
        numpy=np.multiply,
        emit=lambda _e, a, b: a * b,
        slopes=lambda _f, a, b, _y: (b, a),
        ends=_ends_of_product,
    ),
    "div": Operation(
        numpy=np.divide, emit=_divided, slopes=lambda _f, _a, b, y: (1.0 / b, -y / b), is_long=True
    ),
    "neg": Operation(
        numpy=np.negative,
        emit=lambda _e, a: -a,
        slopes=lambda _f, _a, _y: (-1.0,),
        error=_exact,
        ends=lambda of, _value: (-of[0][1], -of[0][0]),
    ),
    "abs": Operation(
        numpy=np.abs,
        emit=lambda e, a: e.k.abs(a),
        slopes=lambda f, a, _y: (f.where(a > 0.0, 1.0, f.where(a < 0.0, -1.0, 0.0)),),
        steepest=(1.0,),
        error=_exact,
        ends=_ends_of_abs,
    ),
    "min": Operation(
        numpy=np.fmin,
        emit=lambda e, a, b: e.k.min(a, b),
        slopes=lambda f, a, b, _y: (f.where(a <= b, 1.0, 0.0), f.where(a <= b, 0.0, 1.0)),
        steepest=(1.0, 1.0),
        error=_exact,
        ends=lambda of, _value: (min(of[0][0], of[1][0]), min(of[0][1], of[1][1])),
    ),
    "max": Operation(
        numpy=np.fmax,
        emit=lambda e, a, b: e.k.max(a, b),
        slopes=lambda f, a, b, _y: (f.where(a >= b, 1.0, 0.0), f.where(a >= b, 0.0, 1.0)),
        steepest=(1.0, 1.0),
        error=_exact,
        ends=lambda of, _value: (max(of[0][0], of[1][0]), max(of[0][1], of[1][1])),
    ),
    "exp": Operation(
        numpy=np.exp,
        emit=lambda e, a: e.k.exp(a),
        slopes=lambda _f, _a, y: (y,),
        # `KernelBuilder.exp`: (|x| + 3) * 2**-23
        error=lambda a, y: (2 * np.abs(a) + 6) * np.maximum(np.abs(y), _LEAST_NORMAL),
        is_long=True,
    ),
    "exp2": Operation(
        numpy=np.exp2,
        emit=lambda e, a: e.k.ex2(a),
        slopes=lambda _f, _a, y: (y * math.log(2),),
        # 2 units in the last place of a rounded result (PTX ISA, "ex2")
        error=lambda _a, y: 5 * np.maximum(np.abs(y), _LEAST_NORMAL),
        is_long=True,
    ),
    "log": Operation(
        numpy=np.log,
        emit=lambda e, a: e.k.log(a),
        slopes=lambda _f, a, _y: (1.0 / a,),
        error=lambda _a, y: 6 * np.abs(y) + 4,  # `KernelBuilder.log`: 1.3 * 2**-22, near 1 absolutely
        is_long=True,
    ),
    "log2": Operation(
        numpy=np.log2,
        emit=lambda e, a: e.k.lg2(a),
        slopes=lambda _f, a, _y: (1.0 / (a * math.log(2)),),
        error=lambda _a, y: 4 * np.abs(y) + 4,  # 2**-22, in (0.5, 2) absolutely (PTX ISA, "lg2")
        is_long=True,
    ),
    "sqrt": Operation(
        numpy=np.sqrt, emit=lambda e, a: e.k.sqrt_rn(a), slopes=lambda _f, _a, y: (0.5 / y,), is_long=True
    ),
    "rsqrt": Operation(
        numpy=lambda a: 1 / np.sqrt(a),
        emit=lambda e, a: e.k.rsqrt(a),
        slopes=lambda _f, _a, y: (y * y * y * -0.5,),
        error=_of_magnitude(2.2),  # 2**-22.9 of itself (PTX ISA, "rsqrt")
        is_long=True,
    ),
    "tanh": Operation(
        numpy=np.tanh,
        emit=lambda e, a: tanh(e.k, a, rounds_once=e.rounds_once),
        slopes=lambda _f, _a, y: (1.0 - y * y,),
        error=_of_magnitude(6),  # 3 units in the last place
        is_long=True,
    ),
    "sigmoid": Operation(
        numpy=logistic_of_array,
        emit=lambda e, a: logistic(e.k, a, rounds_once=e.rounds_once),
        slopes=lambda _f, _a, y: (y * (1.0 - y),),
        # that of exp(-x) by its share of the sum, one rounding of the sum, and 2 of the division
        error=lambda a, y: ((2 * np.abs(a) + 6) * (1 - y) + 3) * y + 2.0**24 * _LEAST_NORMAL,
        is_long=True,
    ),
    "erf": Operation(
        numpy=erf_of_array,
        emit=lambda e, a: error_function(e.k, a),
        slopes=lambda f, a, _y: (f.exp(-a * a) * (2 / math.sqrt(math.pi)),),
        error=_of_magnitude(8),  # 4 units in the last place
        is_long=True,
    ),
    "sin": Operation(
        numpy=np.sin,
        emit=lambda e, a: sine(e.k, a),
        slopes=lambda f, a, _y: (f.cos(a),),
        error=lambda a, _y: np.where(np.abs(a) <= LARGEST_ANGLE, 2.0, 2.0 * 2**24),
        is_long=True,
    ),
    "cos": Operation(
        numpy=np.cos,
        emit=lambda e, a: sine(e.k, a, quarters=1),
        slopes=lambda f, a, _y: (-f.sin(a),),
        error=lambda a, _y: np.where(np.abs(a) <= LARGEST_ANGLE, 2.0, 2.0 * 2**24),
        is_long=True,
    ),
    "floor": Operation(
        numpy=np.floor,
        emit=lambda e, a: e.k.cvt(a, rnd="rmi", dtype=f32),
        slopes=lambda _f, _a, _y: (0.0,),
        error=_exact,
        jump=_apart_from_whole,
    ),
    "round": Operation(
        numpy=np.rint,
        emit=lambda e, a: e.k.cvt(a, rnd="rni", dtype=f32),
        slopes=lambda _f, _a, _y: (0.0,),
        error=_exact,
        jump=lambda x: np.abs(x - np.floor(x) - 0.5),
    ),
    "int": Operation(
        numpy=_integers, emit=lambda e, a: e.k.cvt(a, rnd="rzi", dtype=s32), jump=_apart_from_whole
    ),
    "float": Operation(  # the conversion follows from the type of the step
        numpy=np.asarray,
        emit=lambda e, a: e.k.cvt(a, rnd="rn", dtype=f32),
        # rounded, and in a kernel a rounded sum
        error=lambda _a, y: np.where(np.abs(y) > 2.0**24, 2 * np.abs(y), 0),
    ),
    "lt": Operation(numpy=np.less, emit=lambda _e, a, b: a < b),
    "le": Operation(numpy=np.less_equal, emit=lambda _e, a, b: a <= b),
    "eq": Operation(numpy=np.equal, emit=lambda _e, a, b: a == b),
    "ne": Operation(numpy=np.not_equal, emit=lambda _e, a, b: a != b),
    # These operations take conditions, or the bits of integers.
    "and": Operation(
        numpy=np.bitwise_and,
        emit=lambda _e, a, b: a & b,
        ends=lambda of, _value: _ends_of_bits(of, least=True),
    ),
    "or": Operation(
        numpy=np.bitwise_or,
        emit=lambda _e, a, b: a | b,
        ends=lambda of, _value: _ends_of_bits(of, least=False),
    ),
    "xor": Operation(
        numpy=np.bitwise_xor,
        emit=lambda _e, a, b: a ^ b,
        ends=lambda of, _value: _ends_of_bits(of, least=False),
    ),
    "not": Operation(numpy=np.invert, emit=lambda _e, a: ~a, ends=lambda of, _value: (~of[0][1], ~of[0][0])),
    "shl": Operation(
        numpy=_shifted_left,
        emit=lambda e, a, bits: e.k.shl(a, _amount(bits)),
        ends=lambda of, _value: _ends_of_shift(of, left=True),
    ),
    "shr": Operation(
        numpy=_shifted_right,
        emit=lambda e, a, bits: e.k.shr(a, _amount(bits)),
        ends=lambda of, _value: _ends_of_shift(of, left=False),
    ),
    "where": Operation(
        numpy=np.where,
        emit=_chosen,
        ends=lambda of, _value: (min(of[0][0], of[1][0]), max(of[0][1], of[1][1])),
    ),
    "floordiv": Operation(  # by a positive constant
        numpy=np.floor_divide, emit=_by_constant, ends=lambda of, by: (of[0][0] // by, of[0][1] // by)
    ),
    "mod": Operation(numpy=np.mod, emit=_by_constant, ends=lambda _of, by: (0, by - 1)),
    "quotient": Operation(  # floor division by any integer
        numpy=_quotients, emit=_quotient, ends=_ends_of_quotient, is_long=True
    ),
}


def is_long(trace: Trace) -> bool:
    """Whether a step of a traced function takes more than a few instructions."""
    return any(step.op in OPERATIONS and OPERATIONS[step.op].is_long for step in trace.steps)
