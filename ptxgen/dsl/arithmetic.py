"""Functions of values, each of which emits a few instructions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final

from ptxgen.dsl import division
from ptxgen.dsl.choice import check_value
from ptxgen.dsl.ops import Ops
from ptxgen.dsl.pairs import Pair
from ptxgen.dsl.values import Scalar, Value, Var, is_count, is_int, require_value
from ptxgen.errors import ConfigError, KernelWarning, TypeMismatchError, shown
from ptxgen.ir import Instr
from ptxgen.isa.integer import subtracts
from ptxgen.target import WARP_SIZE
from ptxgen.types import f32, s32, u32

_COUNTER_WORDS, _KEY_WORDS, _ROUNDS = 4, 2, 10  # of Philox4x32
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_DROPPED_BITS: Final = 8  # of a word, of which an f32 has 24
_SETTLED: Final = ("ge", "lt")  # comparisons of unsigned numbers with 0 that come out the same for all


class Arithmetic(Ops):
    """Functions that the instruction table lacks; it has `k.max`, `k.abs`, `k.selp` and many more."""

    inf: Final = math.inf
    reciprocals = True  # whether quotients by constants are products instead of `div`

    def accumulate(self, total: Var, a: Scalar, b: Scalar) -> None:
        """Emit total += a * b for floats as a fused multiply-add, rounded once."""
        self.emit("fma", (a, b, total), into=total)

    def divide_up(self, value: Value, by: int) -> Value:
        """ceil(value / by) for a value >= 0 and a positive constant; value + by - 1 must not wrap."""
        require_value("divide_up", value)
        if not is_count(by):
            raise ConfigError(f"divide_up: the divisor must be a positive integer, got {shown(by)}")
        return (value + (by - 1)) // by

    def divided(self, a: Value, by: Scalar) -> Value:
        """The quotient of two integers, rounded towards zero: a // by."""
        quotient = division.quotient(a, by) if self.reciprocals else None
        return self.emit("div", (a, by)) if quotient is None else quotient

    def ordered(self, a: Value, cmp: str, b: Scalar) -> Value:
        """Whether two numbers compare as `cmp` says: lt, le, gt or ge.

        Warns (`KernelWarning`) if a difference of unsigned numbers is compared with 0, which it is never
        below. Raises `TypeMismatchError` for an unsigned number and a negative one.
        """
        if a.type.kind == "u" and isinstance(b, int):
            if b < 0:
                raise TypeMismatchError(
                    f"{cmp}: {a!r} is never negative, got {b}; compare it as signed with .as_(s{a.type.bits})"
                )
            if b == 0 and cmp in _SETTLED and self._is_difference(a):
                origin = self.origin()
                message = (
                    f"a difference of {a.type} is never less than 0: it wraps around instead; compare "
                    f"before the subtraction, such as i >= 1 for i - 1 >= 0, or use .as_(s{a.type.bits})"
                )
                filename = origin.code.co_filename if origin.code is not None else self.name
                warnings.warn_explicit(message, KernelWarning, filename, origin.line)
        return self.emit("setp", (a, b), {"cmp": cmp})

    def _is_difference(self, value: Value) -> bool:
        """Whether the last instruction that wrote a value is a subtraction."""
        for statement in reversed(self._statements):
            if isinstance(statement, Instr) and value.reg in statement.operands[:1]:
                return subtracts(statement)
        return False

    def remainder(self, a: Value, by: Scalar) -> Value:
        """The remainder of two integers, with the sign of a: a % by."""
        remainder = division.remainder(a, by) if self.reciprocals else None
        return self.emit("rem", (a, by)) if remainder is None else remainder

    def butterfly(self, value: Value, distance: int) -> Value:
        """The `value` of the lane (lane index xor `distance`); `distance` is 1, 2, 4, 8 or 16."""
        if not is_count(distance) or distance >= WARP_SIZE or distance & (distance - 1):
            raise ConfigError(f"butterfly: distance must be 1, 2, 4, 8 or 16, got {shown(distance)}")
        return self.emit("shfl", (value, distance, WARP_SIZE - 1, -1), {"mode": "bfly"})

    def pair(self, low: Value | float, high: Value | float) -> Pair:
        """Two f32 values or numbers as a `Pair`, with which one instruction computes at once, on sm_100 and
        later. Raises `TypeMismatchError` for other values.
        """
        return Pair.of(self, low, high)

    def philox(
        self, counter: Sequence[Scalar], key: Sequence[Scalar], *, rounds: int = _ROUNDS
    ) -> tuple[Value, Value, Value, Value]:
        """Four random u32 words, those of Philox4x32: a function of four u32 words of a counter and two of a
        key (J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3). Different
        counters give independent words, as in cuRAND, PyTorch and Triton. 7 `rounds` are the fewest that pass
        the authors' tests.

        Raises `ConfigError` for other numbers of words, and `TypeMismatchError` for other types.
        """
        if len(counter) != _COUNTER_WORDS or len(key) != _KEY_WORDS or not is_count(rounds):
            raise ConfigError(
                "philox: it takes 4 words of a counter, 2 of a key and rounds of at least 1, got "
                f"{shown(counter)}, {shown(key)} and {shown(rounds)}"
            )
        a, b, c, d = (self._word("philox", word) for word in counter)
        keys = [self._word("philox", word) for word in key]
        for number in range(rounds):
            high = [self.mul(w, m, mode="hi") for w, m in zip((a, c), _MULTIPLIERS, strict=True)]
            low = [w * m for w, m in zip((a, c), _MULTIPLIERS, strict=True)]
            first, second = (
                part + (number * step & 0xFFFF_FFFF) for part, step in zip(keys, _KEY_STEPS, strict=True)
            )
            a, b, c, d = high[1] ^ b ^ first, low[1], high[0] ^ d ^ second, low[0]
        return a, b, c, d

    def _word(self, caller: str, word: Scalar) -> Value:
        """The argument as a u32 value: a value as it is, a Python int as a literal."""
        if is_int(word):
            return self.mov(int(word), type=u32)
        if not isinstance(word, Value) or word.type is not u32:
            raise TypeMismatchError(
                f"{caller} takes u32 values and numbers from 0 to 2**32 - 1, got {shown(word)}"
            )
        return word

    def uniform(self, word: Value) -> Value:
        """An f32 of 0 <= x < 1 from a random u32 word: its upper 24 bits times 2**-24, exact."""
        word = self._word("uniform", word)
        return self.cvt(word >> _DROPPED_BITS, dtype=f32, rnd="rn") * 2.0 ** (_DROPPED_BITS - 32)

    def signed(self, value: Value) -> Value:
        """A u32 value as s32, without an instruction; the caller knows that it is below 2**31."""
        require_value("signed", value)
        return value.as_(s32)

    def exp(self, value: Value) -> Value:
        """e to the power of an f32 value, as `ex2.approx` of value * log2(e), of two instructions.

        For x up to 88.7 it errs by at most (|x| + 3) * 2**-23 * max(e**x, 2**-126): log2(e) in f32
        is off by 2**-26.1 of itself and the product is rounded by up to 2**-24 of itself, so the
        exponent is off by up to |x| * log2(e) * 1.24 * 2**-24, and with it the result by
        0.62 * |x| * 2**-23 of itself; `ex2.approx` errs by 2 ulp of a rounded result (PTX ISA,
        "ex2"), which are 2.5 * 2**-23 of it, or of 2**-126 if it is subnormal. -inf gives 0.
        """
        _require_f32("exp", value)
        return self.ex2(value * math.log2(math.e))

    def log(self, value: Value) -> Value:
        """The natural logarithm of an f32 value, as `lg2.approx` times ln(2), of two instructions.

        It errs by at most 2**-22 for values in (0.5, 2), and else by 1.3 * 2**-22 of itself:
        `lg2.approx` errs by 2**-22, absolutely in (0.5, 2) and else relatively (PTX ISA, "lg2");
        ln(2) in f32 is off by 2**-28.4 of itself, and the product is rounded by up to 2**-24 of
        itself. 0 gives -inf, a negative value NaN.
        """
        _require_f32("log", value)
        return self.lg2(value) * math.log(2)


def _require_f32(caller: str, value: object) -> None:
    require_value(caller, value)
    check_value(f"{caller}: the operand", f32, value)
