"""The functions of values that a function of scores may use beside operators, each by the names that
Python, PyTorch and numpy have for it. Most are made of operations, from which all else follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flash.mods.arithmetic import (
    binary,
    bitwise,
    choice,
    compared,
    divided,
    inverted,
    pair,
    power,
    quotient,
    shifted,
    unary,
)
from flash.mods.arithmetic import remainder as _remainder
from flash.mods.conversions import as_condition, as_float
from flash.mods.named import first_traced, named
from flash.mods.values import FUNCTIONS, METHODS, WORDS, Traced, lifted
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import f32, pred, s32


def _function(op: str, a: Any) -> Traced:
    return unary(op, as_float(first_traced(op, a)))


# ---- operations of a number, as f32


@named()
def exp(a: Any) -> Traced:
    """e to the power of a number."""
    return _function("exp", a)


@named()
def exp2(a: Any) -> Traced:
    """2 to the power of a number."""
    return _function("exp2", a)


@named()
def log(a: Any) -> Traced:
    """The natural logarithm; -inf of 0, NaN of a negative number."""
    return _function("log", a)


@named()
def log2(a: Any) -> Traced:
    """The logarithm to base 2; -inf of 0, NaN of a negative number."""
    return _function("log2", a)


@named()
def sqrt(a: Any) -> Traced:
    """The square root; NaN of a negative number."""
    return _function("sqrt", a)


@named()
def rsqrt(a: Any) -> Traced:
    """1 / sqrt(a); infinity of 0, NaN of a negative number."""
    return _function("rsqrt", a)


@named()
def tanh(a: Any) -> Traced:
    """The hyperbolic tangent."""
    return _function("tanh", a)


@named("expit")
def sigmoid(a: Any) -> Traced:
    """1 / (1 + exp(-a))."""
    return _function("sigmoid", a)


@named()
def erf(a: Any) -> Traced:
    """The error function."""
    return _function("erf", a)


@named()
def sin(a: Any) -> Traced:
    """The sine of an angle in radians, of magnitude up to 2**18."""
    return _function("sin", a)


@named()
def cos(a: Any) -> Traced:
    """The cosine of an angle in radians, of magnitude up to 2**18."""
    return _function("cos", a)


@named()
def tan(a: Any) -> Traced:
    """The tangent of an angle in radians, of magnitude up to 2**18."""
    return divided(sin(a), cos(a))


def _whole(op: str, a: Any) -> Traced:
    value = first_traced(op, a)
    return value if value.kind is s32 else unary(op, as_float(value))


@named()
def floor(a: Any) -> Traced:
    """The largest whole number that is not above `a`; an integer unchanged."""
    return _whole("floor", a)


@named()
def ceil(a: Any) -> Traced:
    """The least whole number that is not below `a`; an integer unchanged."""
    value = first_traced("ceil", a)
    return value if value.kind is s32 else -floor(-as_float(value))


@named("fix")
def trunc(a: Any) -> Traced:
    """The number rounded towards zero; an integer unchanged."""
    value = first_traced("trunc", a)
    return value if value.kind is s32 else where(value < 0, ceil(value), floor(value))


@named("rint")
def round(a: Any) -> Traced:
    """The nearest whole number, the even one of two equally near; an integer unchanged."""
    return _whole("round", a)


# ---- choices and extremes


@named()
def where(condition: Any, a: Any, b: Any) -> Traced:
    """`a` where the condition holds, else `b`; both are computed."""
    recorder = first_traced("where", condition, a, b).recorder
    chooses = lifted(recorder, condition, pred)
    if chooses.kind is not pred:
        raise TypeMismatchError(f"where: the first operand must be a condition, got {WORDS[chooses.kind]}")
    return choice(chooses, a, b)


METHODS["where"] = lambda a, condition, other: where(condition, a, other)


@named()
def masked_fill(a: Any, mask: Any, value: Any) -> Traced:
    """`value` where `mask` holds, else `a`."""
    return where(mask, value, a)


@named("min", "fmin")
def minimum(a: Any, b: Any) -> Traced:
    """The smaller of two numbers; NaN is ignored unless both are NaN."""
    first_traced("minimum", a, b)
    return binary("min", a, b)


@named("max", "fmax")
def maximum(a: Any, b: Any) -> Traced:
    """The larger of two numbers; NaN is ignored unless both are NaN."""
    first_traced("maximum", a, b)
    return binary("max", a, b)


@named("clip")
def clamp(a: Any, min: Any = None, max: Any = None) -> Traced:
    """A number limited to `min` and `max`; None for no limit."""
    first_traced("clamp", a, min, max)
    limited = a if min is None else maximum(a, min)
    return limited if max is None else minimum(limited, max)


@named()
def clamp_min(a: Any, min: Any) -> Traced:
    """A number, at least `min`."""
    return maximum(a, min)


@named()
def clamp_max(a: Any, max: Any) -> Traced:
    """A number, at most `max`."""
    return minimum(a, max)


@named("abs", "fabs")
def absolute(a: Any) -> Traced:
    """|a|; also written abs(a)."""
    value = first_traced("absolute", a)
    return value if value.kind is pred else unary("abs", value)


@named("sgn")
def sign(a: Any) -> Traced:
    """-1, 0 or 1, of the type of the number."""
    value = first_traced("sign", a)
    return where(value > 0, 1, where(value < 0, -1, value))


@named()
def isnan(a: Any) -> Traced:
    """Whether a number is NaN."""
    value = first_traced("isnan", a)
    return value != value


@named()
def isinf(a: Any) -> Traced:
    """Whether a number is infinite."""
    return abs(as_float(a)) == math.inf


@named()
def isneginf(a: Any) -> Traced:
    """Whether a number is -inf."""
    return as_float(a) == -math.inf


@named()
def nan_to_num(a: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Traced:
    """A number with NaN and infinities replaced; infinities by default by the largest numbers of f32."""
    value, largest = as_float(a), (2 - 2.0**-23) * 2.0**127
    ends = (-largest if neginf is None else neginf, largest if posinf is None else posinf)
    finite = where(value == -math.inf, ends[0], where(value == math.inf, ends[1], value))
    return where(value != value, nan, finite)


# ---- functions of neural networks


@named()
def relu(a: Any) -> Traced:
    """max(a, 0)."""
    return maximum(a, 0)


@named()
def relu6(a: Any) -> Traced:
    """A number limited to 0 and 6."""
    return clamp(a, 0, 6)


@named()
def hardtanh(a: Any, min_val: float = -1.0, max_val: float = 1.0) -> Traced:
    """A number limited to -1 and 1, or other limits."""
    return clamp(as_float(a), min_val, max_val)


@named()
def leaky_relu(a: Any, negative_slope: float = 0.01) -> Traced:
    """A number, times a slope where it is negative."""
    return where(a > 0, as_float(a), a * negative_slope)


@named()
def elu(a: Any, alpha: float = 1.0) -> Traced:
    """A number, and alpha (exp(a) - 1) where it is negative."""
    return where(a > 0, as_float(a), alpha * expm1(minimum(as_float(a), 0.0)))


@named("swish")
def silu(a: Any) -> Traced:
    """a sigmoid(a)."""
    value = as_float(a)
    return value * sigmoid(value)


@named()
def gelu(a: Any, approximate: str = "none") -> Traced:
    """a times the normal distribution function of a; with approximate="tanh" by its formula with tanh."""
    value = as_float(a)
    if approximate == "tanh":
        return 0.5 * value * (1.0 + tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
    if approximate != "none":
        raise TypeMismatchError(f'gelu: approximate must be "none" or "tanh", got {shown(approximate)}')
    return 0.5 * value * (1.0 + erf(value * math.sqrt(0.5)))


@named()
def softplus(a: Any, beta: float = 1.0, threshold: float = 20.0) -> Traced:
    """log(1 + exp(beta a)) / beta; a itself where beta a is above the threshold."""
    scaled = as_float(a) * beta if beta != 1 else as_float(a)
    result = maximum(scaled, 0.0) + log1p(exp(-abs(scaled)))
    result = result if beta == 1 else result * (1 / beta)
    return where(scaled > threshold, as_float(a), result)


@named("log_sigmoid")
def logsigmoid(a: Any) -> Traced:
    """log(sigmoid(a))."""
    return minimum(as_float(a), 0.0) - log1p(exp(-abs(as_float(a))))


@named()
def softsign(a: Any) -> Traced:
    """a / (1 + |a|)."""
    value = as_float(a)
    return value / (1.0 + abs(value))


@named()
def mish(a: Any) -> Traced:
    """a tanh(softplus(a))."""
    value = as_float(a)
    return value * tanh(softplus(value))


# ---- arithmetic by name


@named()
def log1p(a: Any) -> Traced:
    """log(1 + a), from the rounded sum."""
    return log(1.0 + as_float(a))


@named()
def expm1(a: Any) -> Traced:
    """exp(a) - 1, rounded after exp."""
    return exp(a) - 1.0


@named()
def log10(a: Any) -> Traced:
    """The logarithm to base 10."""
    return log2(a) * math.log10(2)


@named()
def square(a: Any) -> Traced:
    """a * a."""
    return power(a, 2)


@named()
def reciprocal(a: Any) -> Traced:
    """1 / a."""
    return divided(1.0, a)


@named("divide", "true_divide")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Traced:
    """a / b; with rounding_mode "floor" a // b, with "trunc" rounded towards zero; the quotient of integers
    is then an integer.
    """
    if rounding_mode is None:
        return divided(a, b)
    if rounding_mode == "floor":
        return quotient(a, b)
    if rounding_mode != "trunc":
        raise TypeMismatchError(
            f'div: rounding_mode must be None, "floor" or "trunc", got {shown(rounding_mode)}'
        )
    one, other = pair(a, b)
    if one.kind is f32:
        return trunc(divided(one, other))
    size = quotient(absolute(one), absolute(other))
    return where((one < 0) ^ (other < 0), -size, size)


@named("bitwise_not", "invert")
def logical_not(a: Any) -> Traced:
    """Whether a condition does not hold; of integers the inverted bits."""
    return inverted(first_traced("logical_not", a))


def _scaled(op: str) -> Callable[..., Traced]:
    """The function that adds or subtracts, by `op`, alpha b and a."""
    return lambda a, b, alpha=1: binary(op, a, b if alpha == 1 else b * alpha)


def _by_condition(op: str) -> Callable[..., Traced]:
    """The function that applies the operation `op` to whether each of two numbers is not 0."""

    def combined(a: Any, b: Any) -> Traced:
        like = first_traced(f"logical_{op}", a, b)
        one, other = (as_condition(lifted(like.recorder, x, like.kind)) for x in (a, b))
        return bitwise(op, one, other)

    return combined


# What PyTorch and numpy call the operators of a tensor with a value.
FUNCTIONS.update(
    {
        "add": _scaled("add"),
        "sub": _scaled("sub"),
        "subtract": _scaled("sub"),
        "rsub": lambda a, b, alpha=1: binary("sub", b, a if alpha == 1 else a * alpha),
        "mul": lambda a, b: binary("mul", a, b),
        "multiply": lambda a, b: binary("mul", a, b),
        "neg": lambda a: unary("neg", a),
        "negative": lambda a: unary("neg", a),
        "pow": power,
        "power": power,
        "float_power": lambda a, b: power(as_float(a) if isinstance(a, Traced) else float(a), b),
        "floor_divide": quotient,
        "remainder": _remainder,
        "fmod": lambda a, b: a - div(a, b, "trunc") * b,
        "bitwise_left_shift": lambda a, b: shifted("shl", a, b),
        "left_shift": lambda a, b: shifted("shl", a, b),
        "bitwise_right_shift": lambda a, b: shifted("shr", a, b),
        "right_shift": lambda a, b: shifted("shr", a, b),
        **{f"bitwise_{op}": (lambda a, b, op=op: bitwise(op, a, b)) for op in ("and", "or", "xor")},
        **{f"logical_{op}": _by_condition(op) for op in ("and", "or", "xor")},
        **dict.fromkeys(("lt", "less"), lambda a, b: compared("lt", a, b)),
        **dict.fromkeys(("le", "less_equal"), lambda a, b: compared("le", a, b)),
        **dict.fromkeys(("gt", "greater"), lambda a, b: compared("lt", b, a)),
        **dict.fromkeys(("ge", "greater_equal"), lambda a, b: compared("le", b, a)),
        **dict.fromkeys(("eq", "equal"), lambda a, b: compared("eq", a, b)),
        **dict.fromkeys(("ne", "not_equal"), lambda a, b: compared("ne", a, b)),
    }
)
